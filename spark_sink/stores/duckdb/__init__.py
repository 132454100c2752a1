"""DuckDB store, which changes rows and offsets of one file in one transaction."""
