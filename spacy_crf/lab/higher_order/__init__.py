"""Chains of higher order: scores, pruned lattices, the structure that sums over lattices, the model, and decoding."""
