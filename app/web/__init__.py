"""The web view: a process of its own that finds the live workers, asks each for its status, and shows it merged."""
