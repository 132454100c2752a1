"""Tables of one's own: what an agent keeps, moved by the same transaction as the last sequences."""
