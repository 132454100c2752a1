"""The user's own database: one module per make of it."""
