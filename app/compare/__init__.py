"""Comparison of two topics or tables, whatever pipeline is between them; the command is in app/cli/compare.py."""
