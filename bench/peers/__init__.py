"""Small programs that do what a worker does, each in its own way; see `bench.subjects`."""
