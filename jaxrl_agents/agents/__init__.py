"""The agents that a run can train, a folder for each, and what they share."""
