"""Apache Iceberg store, with offsets in table properties that each commit sets."""
