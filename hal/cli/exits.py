"""How the command line ends where no answer is to blame."""

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 and the signal's number, as shells have it."""
