"""`ratchet verify --replay`: runs a program over the committed input again, and compares its outputs with Kafka."""
