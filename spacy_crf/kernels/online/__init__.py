"""Online learning rules: for one sequence after the other, score it, differentiate its loss, and change the weights that it uses.

All weights are one vector of M slots: for features of states, of pairs of states and of segments, then a matrix [S + 2, S] of
transitions, firsts and lasts, -inf where forbidden, then the lengths of segments. Rows of features with many
states own a slot for every state, so not every slot is a weight (``learned``). A rule touches the slots of a sequence's features
and nothing else.

Shapes: n tokens of a sequence, S states, P = S rounded up to a multiple of LANES, the added states forbidden; K tokens of the
longest segment.

One of ``chains`` and ``segments`` is None; numba then compiles no code for it, so a kernel has one variant for chains and one for
segments. (Further variants for pairs and for losses made compiling take four times as long in total.)
"""
