"""The side that runs inside of a sandbox: its first process, and what confines it."""
