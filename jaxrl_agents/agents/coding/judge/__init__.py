"""Judges code: runs tests in fresh sandboxes and compares what they say with what they should."""
