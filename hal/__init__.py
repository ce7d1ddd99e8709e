"""One attention layer for a mixed fleet; see README.md."""
