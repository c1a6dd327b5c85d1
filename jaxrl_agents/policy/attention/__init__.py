"""Attention over whole rows (training) and over the paged cache (decoding), and its kernels."""
