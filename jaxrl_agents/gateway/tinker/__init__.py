"""Tinker's API, which its client library speaks unmodified: messages, futures, routes."""
