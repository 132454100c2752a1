"""What happens to a record batch between its fetch and its commit."""

from agents._deduplicate import deduplicate

__all__ = ["deduplicate"]
