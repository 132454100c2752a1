"""Agents: each consumes the record batches of one partitioned topic.

`deduplicate.py` has Ratchet's own agent, which finds duplicates; `run.py` runs the agents of a user's program.
"""
