"""Adam for the weights of sparse features: what components learn by where nobody has chosen an optimizer for them."""

from thinc.api import Optimizer

from .. import checks


class Minibatch(Optimizer):
    """Adam (Kingma & Ba 2015) with the learning rate that sparse features want, twenty times thinc's, and without averages: for
    pipelines whose own optimizer is made for neural networks.

    It is the default of the components, and steps aside: an optimizer of this package that is given as ``sgd`` or in
    [training.optimizer] is taken in its place, and emissions that are neural learn by what the pipeline learns by.

    learn_rate (float): Good for batches of 2 to 50 texts.
    """

    steps_aside = True

    def __init__(self, *, learn_rate: float = 0.02) -> None:
        super().__init__(checks.positive("Minibatch", "learn_rate", learn_rate), L2=0.0, use_averages=False)
