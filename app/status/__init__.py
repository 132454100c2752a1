"""What the page and the commands show: each worker's status, the group, producers, results."""
