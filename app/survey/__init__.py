"""What kinds of duplicates a topic has: read before anything is installed, without a stream in the settings."""
