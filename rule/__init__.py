"""Rule of deduplication: the verdict on a record from its identity, sequence and window, and the rule's settings.

`tests/rule` contains `examples` of the rule, which are run against every implementation.
"""
