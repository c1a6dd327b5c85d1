"""Builds complete runs of the other packages: what the scripts call. Nothing else imports this."""
