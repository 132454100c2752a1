"""Map of last sequences in memory: plain arrays, and compiled passes over them."""
