"""The pages: one module each. They change nothing."""
