"""Quick comparison of verify: input and output as columns. It gives a verdict only if everything is right."""
