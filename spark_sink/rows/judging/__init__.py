"""Judging a raw topic in Spark: whose each record is, its sequence, and whether it is new."""
