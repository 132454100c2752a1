"""A worker: the Faust app from the settings, its topics, its names, its policies, `ratchet resume`."""
