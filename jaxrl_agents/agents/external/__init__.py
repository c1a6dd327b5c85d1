"""An existing agent, trained behind the gateway as it is."""
