"""Versioned publication of policy weights: shard files, digests, and a manifest written last."""
