"""Status of workers, group, producers and results, for the page and the commands."""
