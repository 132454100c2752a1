"""`ratchet demo`: everything on this machine, with two crashes on the way, and the proof at the end."""

from app.demo._demo import run

__all__ = ["run"]
