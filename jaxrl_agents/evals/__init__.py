"""Scores of a set of episodes (suites.py); whether new weights may replace the old (gates.py)."""
