"""Lanes: each carries the records of one input partition from fetch to commit.

A lane holds record batches as columns, and commits state, offsets and output in one Kafka transaction.

Start reading at: `lane.py` (one partition from fetch to commit), `transactions/producer.py` (Kafka transactions),
`batch/chunk.py` and `batch/kernels.py` (bytes to columns), `batch/encoding.py` (columns to bytes),
`client/cluster.py` (requests), `assignment.py` (which lanes run here).
"""
