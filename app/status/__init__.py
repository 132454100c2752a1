"""What the page and the commands stand on: each worker's status, the group, producers, results."""
