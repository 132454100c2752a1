"""Publishing of a file's lines or a program's records in whole record batches, which this package encodes."""
