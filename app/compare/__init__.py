"""Comparison of any two topics or tables, the start and the end of a pipeline; command: app/cli/compare.py."""
