"""Example programs: `ratchet worker --app kafka_ratchet.agents.examples.running_totals:app`.

The docstring of each program names the streams that it needs in the settings; tests/agents/test_examples.py runs them.
"""
