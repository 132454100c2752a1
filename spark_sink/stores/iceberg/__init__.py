"""Apache Iceberg store, which keeps offsets in properties of the table and sets them in each commit."""
