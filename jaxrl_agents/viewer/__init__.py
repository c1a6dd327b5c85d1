"""A run as one static page: evaluation, curves, and every sampled token on demand (report.py)."""
