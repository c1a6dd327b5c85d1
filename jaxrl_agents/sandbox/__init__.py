"""Sandboxes: commands of a policy run in namespaces, under limits; states are forked and restored.

Imports nothing but the standard library. Begin with `host.sandboxes.Sandboxes`.
"""
