"""An agent that exists already, trained behind the gateway as it is."""
