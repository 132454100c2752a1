"""Programs that do a worker's task by other means, for comparison; see `bench.subjects`."""
