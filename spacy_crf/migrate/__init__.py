"""Read models of other programs in plain Python, and export models to them."""
