"""A worker: the Faust app made from the settings, its topics and policies; and `ratchet resume`."""
