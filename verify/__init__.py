"""Comparison of any pipeline's source with its target: lost, doubled, altered, unexpected, in flight."""

from __future__ import annotations

from kafka_ratchet.app.compare.comparison import Comparison, assert_same, compare

__all__ = ["Comparison", "assert_same", "compare"]
