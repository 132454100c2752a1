"""Publishing in whole record batches, encoded here: a file's lines, or a program's records."""
