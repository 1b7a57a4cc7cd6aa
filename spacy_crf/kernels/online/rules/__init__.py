"""How the weights move. The gradient of a sequence's loss is ``amounts`` at ``slots``; ``seen`` sequences came before it.

`walk` knows the rules by these numbers; those up to AROW look at the best labelling.
"""

NOTHING, PERCEPTRON, BATCH_PERCEPTRON, PASSIVE_AGGRESSIVE, AROW, SGD, SGD_L1, ADAGRAD = range(8)
