"""History of a worker on its own disk: figures and events in ring files, for the page without Prometheus."""
