"""Coding tasks: repositories of real code, damaged, with tests that detect the damage."""
