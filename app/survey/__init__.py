"""Survey of a topic's duplicates, for a user without a stream."""
