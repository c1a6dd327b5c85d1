"""Runs episodes: tools, rollouts, segments, workers, the queue. Knows no environment or model."""
