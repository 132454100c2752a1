"""Kafka transactions: the transactional producer of a partition, and how a hanging transaction is found and ended."""
