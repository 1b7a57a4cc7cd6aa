"""Rules that learn from one sequence after the other: score it, differentiate its loss, change the weights that it uses.

All weights are one vector of M slots: those of the features of states, of the features of pairs of states, of segments, then a
matrix [S + 2, S] of transitions, firsts and lasts, -inf where forbidden, and the lengths of segments. Rows of features with many
states own a slot for every state, so not every slot is a weight (``learned``). A rule touches the slots of a sequence's features
and nothing else.

Shapes: n tokens of a sequence, S states, P = S rounded up to a multiple of LANES, the added states forbidden; K tokens of the
longest segment.

``chains`` and ``segments`` are None where they are not needed, and code for them is then not compiled: a kernel is compiled for
either. (With variants for pairs and for losses too it took four times as long, in all, to compile them.)
"""
