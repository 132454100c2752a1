"""PostgreSQL: offsets in a table of the same transaction."""
