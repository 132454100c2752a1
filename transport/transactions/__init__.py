"""Kafka transactions: transactional producer of a partition, search for hanging transactions, and their end."""
