"""Data files of a table: written by Spark's tasks, in a local folder or a bucket."""
