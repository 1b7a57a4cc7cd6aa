"""Ties between tokens of a Doc, wherever they stand, whose labels are weighed together.

`template` to `layer` find the ties of Docs. `scores` and `structure` answer questions about chains with ties by one of the
methods (`belief_propagation`, `junction_tree`, `mean_field`, `gibbs`), whose base is `method`. `factor_graph` is the model, and
`decoding` is what a component adds.
"""
