"""Pages for reading, one module each."""
