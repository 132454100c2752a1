"""Web page of Ratchet (`ratchet web`), which shows the status of all live workers together."""
