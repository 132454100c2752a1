"""Small programs with a worker's task, each in its own way; see `bench.subjects`."""
