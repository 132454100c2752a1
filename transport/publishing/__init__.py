"""Publishing in whole record batches, encoded here: a file's lines, or what a program sends."""
