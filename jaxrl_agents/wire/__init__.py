"""Connections between the machines of one run: who may come in, and that all of them live."""
