"""Delta Lake: offsets in the commit's `txn` actions."""
