"""Kafka's record batches: bytes to columns, columns to bytes."""
