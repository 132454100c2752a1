"""Dead letters: which there are, what is in them, and sending them to the input again."""
