"""Chains of higher order: scores, pruned lattices, the structure that sums over them, model and decoding."""
