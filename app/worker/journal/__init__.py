"""History of a worker on its own disk: counts and events of bounded size, for the page without Prometheus."""
