"""Delta Lake store, which keeps offsets in the `txn` actions of each commit."""
