"""Coding tasks: repositories of real code, damaged, with tests that tell."""
