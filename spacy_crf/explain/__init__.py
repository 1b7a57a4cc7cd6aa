"""Explanations of a component's decisions, and the learned weights of its model. Components offer both as methods, which look
them up in spaCy's registry."""
