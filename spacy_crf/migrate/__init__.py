"""Models of other programs, read in plain Python, and the way back."""
