"""`ratchet doctor`: looks whether a worker of these settings could run here, and changes nothing."""
