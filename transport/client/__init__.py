"""Kafka's requests: the cluster, its connections, and what aiokafka lacks."""
