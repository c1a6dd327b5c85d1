"""Composer 2: a coding agent in a forkable sandbox that summarizes its own context."""
