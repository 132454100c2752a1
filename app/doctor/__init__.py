"""`ratchet doctor`: checks if a worker with these settings could run on this machine, and changes nothing."""
