"""HTTP interfaces to a policy for agents that know nothing of this package, and what they leave."""
