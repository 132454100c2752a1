"""Fault injection: real workers on a real Kafka are killed, frozen and cut off, and their disks filled, under load.

`run` injects the faults into workers and counts lost, doubled and reordered events. `run_producer` does the same for a
producer, and `run_sink` for the Spark job. The tests use the same parts one by one.
"""
