"""Survey of a topic's duplicates, for a user who has not set up a stream yet."""
