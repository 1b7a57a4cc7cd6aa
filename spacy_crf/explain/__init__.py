"""Why a component decided as it did, and what its model has learned. Components offer it as methods, which find it in spaCy's
registry."""
