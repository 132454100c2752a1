"""Web page of Ratchet: a process that requests the status of all live workers, and shows it together."""
