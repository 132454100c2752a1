"""Avro values, with or without a registry's id in front: their schemas, and their decoding in Spark's tasks."""
