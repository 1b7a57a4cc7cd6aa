"""Systems from the literature that few people need, each with its own entry points and tests. They may import every module of
the package except the commands, and no core module imports them: a config loads them by name (`spacy_crf.NAME.v1`).
"""
