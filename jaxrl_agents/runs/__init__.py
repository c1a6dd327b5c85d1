"""Wires the rooms into runs: what the scripts call. Nothing else imports this."""
