"""DuckDB store, which keeps offsets in a table of the same file and changes both in one transaction."""
