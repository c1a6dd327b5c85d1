"""Mixture of experts: router, dispatch to devices, and the matrix products."""
