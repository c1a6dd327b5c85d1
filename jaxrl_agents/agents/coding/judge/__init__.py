"""Judges code: runs tests in fresh sandboxes and compares their outcomes with the expected ones."""
