"""Fault injection: real workers on a real Kafka are killed, frozen and cut off, and their disks filled, under load.

`run` does it and counts: lost, doubled, reordered. `run_producer` does it to a producer, `run_sink` to the Spark
job. The tests use the same parts one by one.
"""
