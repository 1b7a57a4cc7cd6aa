"""Linear chains with hidden states: each state is a tag with a number that annotation does not name (Morency, Quattoni & Darrell
2007).

The output is ``ChainScores`` of all states: first the states of tag 0, then the states of tag 1, and so on. Annotation allows all
states of a tag, so the loss sums over these states, and training finds their meanings. Several paths stand for one labelling; its
score is the log-sum over these paths. `n_best` finds the best labellings, which may differ from the labelling of the best path.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from spacy_crf import checks
from spacy_crf.arrays import cut, cut_clamp
from spacy_crf.checks import ByLabel
from spacy_crf.inference.structure import States, Structure
from spacy_crf.models.emissions import Emissions, check_emissions
from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.neural import EncoderNode
from spacy_crf.models.node import AnnotatedDocs, Batches, check_equal
from spacy_crf.models.sparse import SparseNode
from spacy_crf.models.structure import build
from spacy_crf.pipeline.decoding import Decoder, Decoding
from spacy_crf.pipeline.distribution import Distribution
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.pipeline.probabilities import Batch
from spacy_crf.types import ChainScores, Clamp

from .errors import Errors, Warnings
from .kernels import labellings as kernels
from .restarts import Seeded

_MOST = 64  # largest number of hidden states of a tag
_MOST_PREFIXES = 4  # largest number of prefixes to expand for each token

logger = logging.getLogger("spacy.spacy_crf")


# ---------------------------------------------------------------------------------------------------- best labellings


def n_best(
    structure: Structure, scores: ChainScores, tag_of: NDArray[np.int64], n: int, *, clamp: Optional[Clamp] = None
) -> tuple[list[list[tuple[float, States]]], NDArray[np.bool_]]:
    """Find the n best labellings of each sequence, or all if there are fewer. If the proof takes too long, return the labellings
    found so far and the labellings of the best paths.

    structure (Structure): A chain, or a chain over the states of a graph.
    scores (ChainScores), tag_of (int64[S]): Scores of the model's states, and their tags, in rising order.
    RETURNS (list[list[tuple[float, int32[T]]]], bool[B]): For each sequence the scores, and a state of each tag, best first;
        and whether no other labellings are better.
    """
    work: Any = structure.prepare(scores, clamp)
    of_states = tag_of if work.tag_of is None else tag_of[work.tag_of]
    tags = np.empty((n, work.n_tokens), dtype=np.int32)
    totals = np.empty((work.n_sequences, n))
    counts = np.empty(work.n_sequences, dtype=np.int64)
    proven = np.empty(work.n_sequences, dtype=np.bool_)
    # Transitions that are possible at some token: range of each source state (int64[S + 1]), and the target states
    source, target = np.nonzero((work.transitions > -np.inf).any(axis=0))
    arcs = np.searchsorted(source, np.arange(work.n_states + 1)), target
    found = tags, totals, counts, proven
    kernels.best_labellings(work.potentials, arcs, of_states.astype(np.int64), _MOST_PREFIXES, *found)
    answers = []
    for b, (count, is_proven) in enumerate(zip(counts.tolist(), proven.tolist())):
        tokens = slice(int(work.starts[b]), int(work.starts[b + 1]))
        # The first state of each tag stands for the tag
        states = np.searchsorted(tag_of, tags[:count, tokens]).astype(np.int32)
        found = list(zip(totals[b, :count].tolist(), states))
        if not is_proven:
            sequence = cut(scores, tokens, np.array([0, tokens.stop - tokens.start]))
            found += _of_best_paths(structure, sequence, cut_clamp(clamp, tokens), tag_of, n, found)
        answers.append(found[:n])
    return answers, proven


def _of_best_paths(
    structure: Structure,
    sequence: ChainScores,
    clamp: Optional[Clamp],
    tag_of: NDArray[np.int64],
    n: int,
    known: list[tuple[float, States]],
) -> list[tuple[float, States]]:
    """Labellings that the best paths of one sequence stand for, except the known ones."""
    first = np.searchsorted(tag_of, tag_of)
    seen = {states.tobytes() for _, states in known}
    found = []
    work = structure.prepare(sequence)
    [paths] = structure.n_best(work if clamp is None else work.clamped(clamp), n)
    for _, path in paths:
        states = first[path].astype(np.int32)
        if states.tobytes() not in seen:
            seen.add(states.tobytes())
            # The score of a labelling is the log-sum over all states of its tags
            allowed = tag_of == tag_of[states][:, np.newaxis]
            allowed &= True if clamp is None else clamp
            found.append((float(structure.log_partition(work.clamped(allowed))[0]), states))
    return sorted(found, key=lambda item: -item[0])


class Labellings:
    """Asks a structure for best labellings in place of best paths.

    decoding (LatentDecoding): Knows the tags, and warns once if the labellings are not proven.
    """

    def __init__(self, structure: Structure, decoding: "LatentDecoding"):
        self._structure = structure
        self._decoding = decoding
        self.log_partition = structure.log_partition

    def n_best(self, scores: ChainScores, n: int, *, clamp: Optional[Clamp] = None) -> list[list[tuple[float, States]]]:
        """The n best labellings of each sequence, with a path of states for each."""
        tag_of = self._decoding.tags_and_break[: scores[0].shape[1]]
        best, proven = n_best(self._structure, scores, tag_of, n, clamp=clamp)
        if not proven.all() and not self._decoding.has_warned:
            self._decoding.has_warned = True
            logger.warning(Warnings.CRFW345.format(name=self._decoding.annotation.name, n=int((~proven).sum())))
        return best


class LatentDistribution:
    """The distribution over labellings whose tags may have several states, with the methods of `Distribution`.

    paths (Distribution): Over paths, which gives all answers but the best labellings.
    """

    def __init__(self, paths: Distribution):
        self._paths = paths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._paths, name)

    def _replace(self, **changes: object) -> "LatentDistribution":
        """The distribution with other fields of that over paths."""
        return LatentDistribution(self._paths._replace(**changes))

    def n_best(self, n: int) -> list[tuple[float, States]]:
        """The n best labellings with their probabilities, each the sum over its paths."""
        paths = self._paths
        decoding: Any = paths.decoding
        searched = decoding.searched if paths.structure is decoding.structure else paths.structure
        several = len(decoding.tag_of) > len(decoding.annotation.tag_labels())
        return (paths._replace(structure=Labellings(searched, decoding)) if several else paths).n_best(n)


class LatentBatch(Batch):
    """Docs whose most probable labellings are found in place of those of the most probable paths, for the decoder `Labelling`."""

    def most_probable(self) -> States:
        """The tags of the most probable labelling of each Doc (int32[T]), or of the most probable path."""
        tags: Any = super().most_probable()
        if not isinstance(self._decoding.decoder, Labelling):
            return tags
        if self._rules is not None and (self._rules.left_out or self._rules.global_):
            names = [rule.name for rule in [*self._rules.left_out, *self._rules.global_]]
            self.parts.warn_once(Warnings.CRFW346, rules=", ".join(names))
            return tags
        if not self._is_tied:
            [(_, tags)] = self.distribution().n_best(1)
            return tags
        for d in np.flatnonzero(np.diff(self._bounds)).tolist():
            [(_, tags[self._bounds[d] : self._bounds[d + 1]])] = self.distribution(d).n_best(1)
        return tags

    def by(self, scores: ChainScores, d: Optional[int]) -> Any:
        """The distribution of Doc d by some scores, or of all Docs."""
        return LatentDistribution(super().by(scores, d))


class LatentDecoding(Decoding):
    """Decoding of chains whose tags may have several states."""

    batches = LatentBatch
    has_warned = False


@dataclass(frozen=True)
class Labelling(Decoder):
    """Finds the most probable labelling, the sum over its paths, in place of that of the most probable path, for the setting
    `decoder` of components with hidden states. Under rules without an automaton it finds that of the path, too."""

    def searched(self, decoding: Decoding) -> Structure:
        """The structure, as `LatentBatch` asks it for labellings. RAISES (ValueError): CRF020 if tags have one state each."""
        must = "left out without hidden states (spacy_crf_lab.LatentChain.v1)"
        owner = f"Component '{decoding.annotation.name}'"
        checks.expect(isinstance(decoding, LatentDecoding), owner, "decoder", self, must)
        return decoding.structure


# ---------------------------------------------------------------------------------------------------------- the model


class LatentNode(Seeded, ChainNode):
    """Node of a latent chain. Its attribute "started" is the number of states whose weights have begun to differ."""

    decoding = LatentDecoding

    def __init__(self, hidden: Union[int, dict[str, int]]):
        super().__init__()
        most = max(hidden.values(), default=1) if isinstance(hidden, dict) else hidden
        learned = (*ChainNode.traits.learned, "started")
        self.traits = ChainNode.traits._replace(learned=learned, meaning=("hidden",), names_states=most <= 1)

    def tag_of(self, model: Model, labels: Sequence[str]) -> NDArray[np.int64]:
        """Tag of each state: as many states of a tag as `hidden` says for its label."""
        hidden = model.attrs["hidden"]
        each = [hidden.get(label, 1) if isinstance(hidden, dict) else hidden for label in labels]
        return np.repeat(np.arange(len(labels)), np.array(each, dtype=np.int64))

    def check_fit(self, model: Model, pipe: CRFPipe, optimizer: Optional[Optimizer]) -> None:
        """Check the labels in `hidden`. RAISES (ValueError): CRF846 for a label that the component does not have."""
        super().check_fit(model, pipe, optimizer)
        hidden = model.attrs["hidden"]
        if pipe.labels and isinstance(hidden, dict):
            owner = f"Component '{pipe.name}', `hidden` of spacy_crf_lab.LatentChain.v1"
            checks.labels(owner, hidden, pipe.annotation.tag_labels())

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Give new states random weights: states of one tag that start equal would stay equal."""
        # The transitions of the first state of each tag count for all of its states
        tag_of = model.attrs["tag_of"]
        first = np.searchsorted(tag_of, tag_of)
        stands = first == np.arange(n_states)

        def of_first_states() -> Iterator[AnnotatedDocs]:
            for batch in corpus():
                yield batch._replace(allowed=batch.allowed & stands)

        super().init_weights(model, of_first_states, n_states, is_new)
        observed = model.attrs["observed"]
        model.attrs["observed"] = observed[np.append(first, [n_states, n_states + 1])][:, first]
        self.spread_out(model, model.attrs["seed"], first=model.attrs["started"] or 0)
        model.attrs["started"] = model.get_dim("nO")

    def spread_out(self, model: Model, seed: int, *, first: int = 0) -> None:
        """Add random numbers to the weights of the states, from `first` on, whose tags have several states."""
        tag_of = model.attrs["tag_of"]
        spread = model.attrs["spread"]
        # [S] states that share their tag, and are new
        states = (np.bincount(tag_of)[tag_of] > 1) & (np.arange(len(tag_of)) >= first)
        random = np.random.default_rng((seed, first))
        for layer in model.layers if states.any() else ():
            _add_noise(layer, states, lambda shape: random.normal(0.0, spread, shape).astype(np.float32))

    def check(self, model: Model, n_states: int) -> None:
        """RAISES (ValueError): CRF509 for a loaded model some of whose states have not begun to differ."""
        super().check(model, n_states)
        check_equal("states with weights of their own", model.attrs["started"], n_states)


def _add_noise(layer: Model, states: NDArray[np.bool_], draw: Callable[[tuple[int, ...]], NDArray[np.float32]]) -> None:
    """Add random numbers, which `draw` returns in a shape, to the weights of some states (bool[S]).

    RAISES (ValueError): CRF625 for a layer without weights.
    """
    node = layer.attrs["node"]
    if isinstance(node, EncoderNode):
        output = layer.get_ref("output")
        weights: Any = output.ops.to_numpy(output.get_param("W")).copy()
        chosen = np.tile(states, node.kinds)
        weights[chosen] += draw(weights[chosen].shape)
        changed: Any = output.ops.asarray(weights)
        output.set_param("W", changed)
        return
    if not isinstance(node, SparseNode):
        raise ValueError(Errors.CRF625.format(owner=layer.name))
    features = node.features(layer)
    for name, table in features.tables.items():
        if not features.is_of_pairs(name):
            weights = layer.get_param(name).copy()
            chosen = states[table.pair_columns]
            weights[chosen] += draw((int(chosen.sum()),))
            layer.set_param(name, weights)
    features.clear_scores()


def LatentChain(
    emissions: Model[list[Doc], Emissions],
    hidden: Union[int, ByLabel] = 2,
    spread: float = 0.01,
    seed: int = 0,
    restarts: int = 1,
    possible_transitions: bool = False,
) -> Model[list[Doc], ChainScores]:
    """A linear chain in which each tag has several hidden states, whose meanings training finds (Morency, Quattoni & Darrell
    2007). The objective has more than one minimum; the seed decides which one training finds.

    emissions (Model): From SparseEmissions, HashedEmissions or Tok2VecEmissions.
    hidden (Union[int, Dict[str, int]]): Number of states of each tag, or numbers by label: "O" stands for tokens without a label,
        and labels that are not named have one state. With 1 everywhere the model is `spacy_crf.LinearChain.v1`.
    spread (float): Standard deviation of the initial weights.
    seed (int): Random seed of the initial weights.
    restarts (int): Number of initializations to try, with the seeds from `seed` on; training continues with the best one.
    possible_transitions (bool): As in `spacy_crf.LinearChain.v1`.
    """
    owner = "LatentChain"
    check_emissions(owner, emissions)
    if isinstance(hidden, (dict, list)):
        hidden = checks.by_label(owner, "hidden", hidden, "numbers of states")
        for label, n in hidden.items():
            checks.count(owner, f"hidden[{label!r}]", n, most=_MOST)
    else:
        checks.count(owner, "hidden", hidden, most=_MOST)
    restarts = checks.count(owner, "restarts", restarts, most=1000)
    if restarts > 1 and not emissions.attrs["node"].traits.is_linear:
        raise ValueError(Errors.CRF346.format(restarts=restarts, emissions=emissions.name))
    return build(
        "latent_chain",
        LatentNode(hidden),
        {"emissions": emissions},
        possible_transitions=checks.flag(owner, "possible_transitions", possible_transitions),
        hidden=hidden,
        spread=checks.number(owner, "spread", spread, least=checks.LEAST, most=1000.0),
        seed=checks.count(owner, "seed", seed, least=0, most=checks.ANY),
        restarts=restarts,
        started=None,
    )
