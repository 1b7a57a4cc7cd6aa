"""The numba kernels of the lab, declared as those of `spacy_crf.kernels`."""
