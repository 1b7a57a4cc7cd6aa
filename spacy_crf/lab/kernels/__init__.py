"""The numba kernels of `lab`, declared as those of `spacy_crf.kernels`."""
