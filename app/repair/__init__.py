"""Repair of a result table, from the records of its topic."""
