"""Lanes from fetch to commit: one transaction per input partition, over record batches as columns.

Start reading at: `lane.py` (one partition from fetch to commit), `transactions/producer.py` (Kafka transactions),
`batch/chunk.py` and `batch/kernels.py` (bytes to columns), `batch/encoding.py` (columns to bytes),
`client/cluster.py` (requests), `assignment.py` (which lanes run here).
"""
