"""What the metadata builder is made of: checks of a batch, the arrays of a step and how they are filled, runs and chunks."""
