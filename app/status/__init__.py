"""Status of workers, their consumer group, producers and result tables, for the page and the commands."""
