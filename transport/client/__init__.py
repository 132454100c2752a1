"""Requests to Kafka: client of a cluster, connections, and requests that aiokafka lacks."""
