"""Delta IcebergCatalog: offsets in the commit's `txn` actions."""
