"""Databases that a reader can write to, one module for each kind."""
