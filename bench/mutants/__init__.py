"""Mutation testing: small changes of the code (mutants), and the tests that fail on them."""
