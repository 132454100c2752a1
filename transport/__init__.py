"""Kafka record batches in and out: columns, raw fetch, lanes with one transaction per input partition.

A reader's way in: `_lane.py` (one partition from fetch to commit), `_transaction.py` (the one place that talks
transactions), `_record_batch.py` and `_kernels.py` (bytes to columns), `_encoding.py` (columns to bytes), `_cluster.py`
(requests).
"""
