"""Faults on purpose: real workers on a real Kafka are killed, frozen, cut off and starved while events go through.

`run` does it and counts: lost, doubled, reordered. `run_producer` does it to a producer, `run_sink` to the Spark
job. The tests use the same parts one by one.
"""
