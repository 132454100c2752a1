"""PostgreSQL store, which changes rows and offsets in one transaction."""
