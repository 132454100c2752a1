"""Judging of a raw topic in Spark: the identity and sequence of each record, and whether it is new."""
