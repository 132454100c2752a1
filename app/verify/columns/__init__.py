"""The quick way of verify: input and output side by side as columns, and a verdict only where all is as it must be."""
