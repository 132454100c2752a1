"""DuckDB: offsets in a table of the same file and transaction."""
