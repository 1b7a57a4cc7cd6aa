"""Systems from the literature that few people need, each with its own entry points and tests. They may import all of the
package but the commands. Nothing else imports them: a config loads them by name (`spacy_crf.NAME.v1`).
"""
