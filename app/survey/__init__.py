"""Survey of a topic's duplicates, before any installation, without a stream in the settings."""
