"""Tables of a user's program, changed by the same transactions as the last sequences."""
