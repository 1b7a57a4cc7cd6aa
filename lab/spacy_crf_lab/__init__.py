"""Systems of the literature on conditional random fields that few people need. Configs load them by
name: `spacy_crf_lab.NAME.v1`."""

__version__ = "0.22.0"
