"""The Faust agents: each consumes the record batches of one partitioned topic.

`deduplicate.py` is the agent that Ratchet exists for; `extraction.py` reads the sequences that it judges by.
"""
