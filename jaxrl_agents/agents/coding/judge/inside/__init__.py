"""Programs that run inside of a sandbox: they import the standard library and one another."""
