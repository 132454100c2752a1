"""Benchmarks: the same task done by Ratchet and by other programs, on one machine."""
