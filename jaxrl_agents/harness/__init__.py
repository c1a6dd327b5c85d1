"""Runs episodes: tools, rollouts, segments, workers. Knows no environment or model."""
