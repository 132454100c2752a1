"""Tables of a program's agents, moved by the same transaction as the last sequences."""
