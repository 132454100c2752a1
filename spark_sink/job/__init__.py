"""One run of the job: plan the offsets, read them, hand the rows to the store, report."""
