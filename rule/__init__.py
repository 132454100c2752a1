"""Rule of deduplication: identity, sequence, window and verdict of a record, and the settings of all that.

`examples` of it, run against every implementation, are in `tests/rule`.
"""
