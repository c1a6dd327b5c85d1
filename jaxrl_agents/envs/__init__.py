"""Environments: each a file with `make(task, services)`."""
