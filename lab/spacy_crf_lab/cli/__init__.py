"""The commands that the lab adds to `python -m spacy crf`."""
