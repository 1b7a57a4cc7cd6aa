"""Ties between any tokens of a Doc: the labels of two tied tokens have a joint score.

`templates`, `groups`, `spelling`, `features` and `layer` find the ties of Docs. `scores` and `structure` define chains with ties.
Sums and maxima over them are computed by one of the methods `belief_propagation`, `junction_tree`, `mean_field` and `gibbs`,
whose base is `method`, or maxima alone by `graph_cut`, `linear_program` and `dual_decomposition`, whose base is
`best_labelling`. `factor_graph` is the model, and `decoding` connects it to a component.
"""
