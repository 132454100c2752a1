"""The page: a process that finds the live workers, asks each for its status, and shows the answers together."""
