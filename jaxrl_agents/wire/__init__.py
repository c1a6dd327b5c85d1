"""Connections between the machines of one run: authentication, and heartbeats."""
