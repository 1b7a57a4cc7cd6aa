"""A room for what few people need: systems of the literature, each with its own entry points and tests. They may import all
of the package but the commands, and nothing else imports them: their names in a config (`spacy_crf.NAME.v1`) load them.
"""
