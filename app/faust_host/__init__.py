"""Faust programs on lanes: a `faust.App` keeps its own objects, and each partition's effects commit together."""
