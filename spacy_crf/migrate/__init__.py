"""Reads models of other programs in plain Python, and exports models to them."""
