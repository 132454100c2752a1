"""Repair of a result table, by its topic."""
