"""`ratchet demo`: everything on this machine, with two crashes on the way, and the proof at the end."""

from kafka_ratchet.app.demo.run import run

__all__ = ["run"]
