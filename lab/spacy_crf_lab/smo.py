"""Max-margin training in the dual by exchanges: each step takes mass from one labelling of a sequence and gives it to another."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spacy_crf.arrays import expect_below
from spacy_crf.errors import cant_train
from spacy_crf.optimizers.objective import SequenceObjective
from spacy_crf.optimizers.online import CorpusPass, OnlineRun
from spacy_crf.types import ChainCorpus

from .dual import DualOptimizer
from .kernels.smo import Arcs, Exchange, exchange

_ROOM = 4  # arcs of a token for which there is room at first


@dataclass(kw_only=True, eq=False, repr=False)
class SMO(DualOptimizer):
    """A structural SVM of linear chains by sequential minimal optimization (Taskar, Guestrin & Koller 2003): each step moves mass
    to the most violating labelling of a sequence from the labelling of the lowest score among those that have any.

    The distribution of a sequence is stored as masses of neighbouring states. A labelling can have as much of it as the least of
    its arcs has (Garber & Meshi 2016), so wrong labellings soon have none, where `FrankWolfe` only halves them again and again.

    l1 (float): 0, as only LBFGS, SGD and AdaGrad set weights to 0.
    l2 (float): Weight of w², without a factor 1/2.
    gap_tolerance (float): Stop when the duality gap is at most this fraction of the objective.
    epochs_per_step (int): Passes over the corpus in one step, at most 1,000.
    seed (int): Random seed for the order of the sequences.
    """

    def prepare(self, objective: SequenceObjective, pass_: CorpusPass, run: OnlineRun, key: str) -> None:
        """Begin or continue a run. RAISES (ValueError): CRF347 for segments; CRF921 for a damaged run."""
        if objective.corpus.segments is not None:
            raise cant_train(
                self, f"the segments of '{key}'", "it is made for linear chains", "FrankWolfe or CuttingPlane"
            )
        super().prepare(objective, pass_, run, key)
        if run.frame is None:
            self._expect_labellings(run, pass_.corpus)

    def _expect_labellings(self, run: OnlineRun, corpus: ChainCorpus) -> None:
        """RAISES (ValueError): CRF921 if the arcs of a loaded run, which kernels follow, are no labellings."""
        counts = run.arrays["counts"]
        arcs = run.arrays["arcs"]
        size = corpus.n_states
        try:
            expect_below("numbers of arcs", counts, arcs.shape[1] + 1, least=1)
            expect_below("arcs", arcs.ravel(), size * size)
        except ValueError as error:
            raise self.unusable(error) from error
        source, target = np.divmod(arcs, size)
        is_there = np.arange(arcs.shape[1]) < counts[:, np.newaxis]
        lengths = np.diff(corpus.starts)
        reached = np.ones((0, size), dtype=bool)  # states of the token before that labellings lead to, of each sequence
        for t in range(int(lengths.max(initial=0))):
            sequences = np.flatnonzero(lengths > t)
            tokens = corpus.starts[:-1][sequences] + t
            goes_on = is_there[tokens]
            if t:
                goes_on &= np.take_along_axis(reached[sequences], source[tokens], axis=1)
            elif source[tokens][goes_on].any():
                raise self.unusable("a labelling begins with a state before the first token")
            reached = np.zeros((len(lengths), size), dtype=bool)
            rows = np.broadcast_to(sequences[:, np.newaxis], goes_on.shape)
            reached[rows[goes_on], target[tokens][goes_on]] = True
            if not reached[sequences].any(axis=1).all():
                raise self.unusable("the arcs of a sequence are no labelling")

    def distributions(self, corpus: ChainCorpus, pass_: CorpusPass) -> dict[str, NDArray]:
        """All mass at the annotation."""
        before = np.append(np.int32(0), corpus.gold[:-1])
        before[corpus.starts[:-1][np.diff(corpus.starts) > 0]] = 0
        masses = np.zeros((len(corpus.gold), _ROOM))
        masses[:, 0] = np.repeat(corpus.weights, np.diff(corpus.starts))
        arcs = np.zeros(masses.shape, dtype=np.int32)
        # An arc from i to j is numbered i · S + j
        arcs[:, 0] = before * corpus.n_states + corpus.gold
        return {"counts": np.ones(len(masses), dtype=np.int32), "arcs": arcs, "masses": masses}

    def ascend(self, pass_: CorpusPass, run: OnlineRun, *, learns: bool) -> tuple[float, int]:
        """Pass through the corpus once, with more room for arcs where a token needs it; see `DualOptimizer.ascend`."""
        if not learns:
            return super().ascend(pass_, run, learns=False)
        *room, _ = pass_.room
        total = 0.0
        done = 0
        while True:
            arcs = Arcs(*(run.arrays[name] for name in Arcs._fields))
            given = Exchange(pass_.order[done:], pass_.costs, run.slots, run.arrays["strength"], run.arrays["dual"])
            loss, place, is_full = exchange(*room, arcs, given)
            if not is_full:
                return total + loss, place if place < 0 else done + place
            # The kernel stops where a token has no room for another arc: double the room, and go on from there
            total += loss
            done += place
            for name in ("arcs", "masses"):
                run.arrays[name] = np.concatenate([run.arrays[name], np.zeros_like(run.arrays[name])], axis=1)
