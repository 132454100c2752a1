"""Apache Iceberg: offsets are properties of the table, set in the commit."""
