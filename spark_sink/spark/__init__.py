"""Spark itself: the session, its Kafka options, its errors, the package for a cluster."""
