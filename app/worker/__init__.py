"""Worker: the Faust app made from the settings, its lanes, topics, claims and policies."""
