"""Dead letters: listing, contents, and re-sending to the input."""
