"""The same work on Ratchet and on its peers, measured in one run on one machine."""
