"""The loop from the traffic of users to new weights: log, feedback, gate, canary, roll back."""
