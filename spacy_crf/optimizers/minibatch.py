"""Adam for the weights of sparse features: what components learn by where nobody has chosen an optimizer for them."""

from thinc.api import Optimizer

from .objective import check_number


class Minibatch(Optimizer):
    """Adam (Kingma & Ba 2015) with the learning rate that sparse features want, twenty times thinc's, and without averages: for
    pipelines whose own optimizer is made for neural networks.

    It is the default of the components, and steps aside: an optimizer of this package that is given as ``sgd`` or in
    [training.optimizer] is taken in its place, and emissions that are neural learn by what the pipeline learns by.

    learn_rate (float): Good for batches of 2 to 50 texts.
    """

    steps_aside = True

    def __init__(self, *, learn_rate: float = 0.02) -> None:
        check_number("Minibatch", "learn_rate", learn_rate, open=True)
        super().__init__(learn_rate, L2=0.0, use_averages=False)
