"""From fetch to commit: lanes with one transaction per input partition, over Kafka's record batches as columns.

A reader's way in: `lane.py` (one partition from fetch to commit), `transactions/producer.py` (Kafka
transactions), `batch/chunk.py` and `batch/kernels.py` (bytes to columns), `batch/encoding.py` (columns to
bytes), `client/cluster.py` (requests), `assignment.py` (which lanes run here).
"""
