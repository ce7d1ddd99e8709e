"""One step's batch made into metadata: pages and tables, checks, the arrays of a step and how they are filled."""
