"""Hidden Markov models of order 1 and 2, whose weights are logarithms of probabilities that follow from counts, as in TnT (Brants
2000).

An HMM is a chain with fixed weights: its score of a labelling is log p(labelling, words), up to a number that all labellings of a
text share. Its features are those of single words: the word with its shape, and for words that training hardly met endings and
the shape alone, each of which backs off to a more general one (`word_counts.log_ratios`).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Optional, Union

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from spacy_crf import checks
from spacy_crf.errors import announcements, cant_train
from spacy_crf.features.extractor import FeatureSet
from spacy_crf.features.items import is_item
from spacy_crf.features.lexemes import NGRAMS
from spacy_crf.features.templates import parse_templates
from spacy_crf.inference.pruned_lattice import HigherOrderScores, Orders
from spacy_crf.models.emissions import EmissionFeatures, SparseEmissions
from spacy_crf.models.higher_order import HigherOrderNode
from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.node import Batches
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.models.structure import StructureNode, build
from spacy_crf.optimizers.objective import CRFOptimizer
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import ChainScores, Floats

from .baum_welch import Estimates, Observed, Priors, baum_welch, expect, maximize
from .counting import Counts, step_scores
from .errors import Warnings
from .word_counts import Block, Tally, features_of

# Smaller weights change a probability by less than 1 %, and expected counts would lead to very many of them
_LEAST = 0.01
_SHAPE = "short_shape[0]"


class Counted(StructureNode):
    """Base of the nodes of HMMs: `init_weights` computes all weights."""

    def check_fit(self, model: Model, pipe: CRFPipe, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): CRF347 for an optimizer that learns."""
        super().check_fit(model, pipe, optimizer)
        if isinstance(optimizer, CRFOptimizer) and not isinstance(optimizer, Counting):
            what = f"{model.name} of '{pipe.name}'"
            reason = "its weights follow from counts"
            raise cant_train(optimizer, what, reason, "spacy_crf_lab.Counting.v1")

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Count tags, and set the weights to logarithms of probabilities."""
        super().init_weights(model, corpus, n_states, is_new)
        if not is_new:
            return
        layer = model.get_ref("emissions")
        attrs = model.attrs
        features: EmissionFeatures = layer.attrs["features"]
        tally = Tally(features)
        blocks = []
        has_triples = isinstance(self, HigherOrderNode)
        orders = self.orders(model) if has_triples else Orders(1, np.zeros(0, dtype=np.int64), model.get_dim("nO"))
        counts = Counts.none(features.n_states, orders.keys)
        for block in tally.blocks(corpus):
            # Tokens with several allowed tags count nothing here; `_expected` shares them out
            known = block.allowed.sum(axis=1) == 1
            weights = np.repeat(block.weights, np.diff(block.starts))
            counts.add(np.where(known, block.allowed.argmax(axis=1), -1), block.starts, weights)
            tally.add(block.rows, block.allowed * (known * weights)[:, np.newaxis])
            blocks += [block] if attrs["em_iterations"] else []
        if blocks:
            counts = _expected(model, orders, blocks, counts, tally)
        weights = tally.weights(attrs["smoothing"])
        allowed = attrs["allowed"]
        kept = weights > _LEAST
        steps = step_scores(counts, allowed, attrs["smoothing"])
        layer.attrs["features"] = features.with_tables({**features.tables, "states": tally.table.pruned(kept)})
        values: Any = weights[kept].astype(np.float32)
        layer.set_param("states", values)
        for name in self.traits.params:
            model.set_param(name, getattr(steps, name).astype(np.float32))


class HMMNode(Counted, ChainNode):
    """Node of HMMs of order 1."""

    traits = ChainNode.traits._replace(counts="annotated", is_online=False)


class TrigramNode(Counted, HigherOrderNode):
    """Node of HMMs of order 2."""

    traits = HigherOrderNode.traits._replace(counts="annotated")

    def forget(self, model: Model) -> None:
        """Remove the weights; the thresholds of pruning are settings."""
        super().forget(model)
        if model.attrs["keep"] is not None:  # pruning is by one threshold, not by a number that depends on the batch
            model.attrs["thresholds"] = {"keep": model.attrs["keep"], "least": 2 * [model.attrs["prune"]]}


def _expected(model: Model, orders: Orders, blocks: list[Block], counts: Counts, tally: Tally) -> Counts:
    """Replace the counts by expected ones, after some iterations of `baum_welch`. The first iteration has the counts of the
    annotation, or random ones without any; each word begins with the tags of its ending."""
    attrs = model.attrs
    table = tally.table
    smoothing = attrs["smoothing"]
    # The last template is the word itself
    is_word = tally.level == tally.level.max(initial=0)
    number = np.cumsum(is_word) - 1
    rows = table.rows_of_pairs()
    texts = []
    endings = np.zeros((int(is_word.sum()), orders.size))  # [V, S] p(tag | ending of the word)
    of_words = np.zeros(endings.shape)  # [V, S] how often each word has each tag
    slots = table.slots(tally.weights(smoothing))
    pairs = is_word[rows]
    of_words[number[rows[pairs]], table.pair_columns[pairs]] = tally.n_pairs[pairs]
    for block in blocks:
        words = np.where(block.rows[-1] >= 0, number[block.rows[-1]], -1)
        scores = np.zeros(block.allowed.shape)
        table.add_scores(features_of(block.rows[:-1]), slots, scores)
        # p(tag | ending), which is the prior of the word's tags
        chances = np.exp(scores - scores.max(axis=1, keepdims=True, initial=0.0))
        known = words >= 0
        endings[words[known]] = (chances / chances.sum(axis=1, keepdims=True))[known]
        texts.append(Observed(words[np.newaxis], *block[1:]))
    if not counts.steps.any():
        random = np.random.default_rng(attrs["seed"])
        of_words = random.exponential(size=of_words.shape)
        counts.steps[:] = random.exponential(size=counts.steps.shape)
    prior = Priors(smoothing, [smoothing * endings])
    allowed = attrs["allowed"]
    say = partial(announcements.info, "HMM: iteration %d begins with log-likelihood %.2f")
    estimates = baum_welch(texts, Estimates(counts, [of_words]), allowed, prior, orders, attrs["em_iterations"], say)
    parameters = maximize(estimates, allowed, prior)
    tally.n_pairs[:] = 0.0

    def add(text: int, of_tags: Floats) -> None:
        tally.add(blocks[text].rows, of_tags)

    return expect(parameters, texts, orders, add).steps


@dataclass(kw_only=True, eq=False, repr=False)
class Counting(CRFOptimizer):
    """The optimizer of models whose weights follow from counts, such as `spacy_crf_lab.HMM.v1`: the initialization counts, so
    there is a single step, which changes nothing."""

    def check_fit(self, pipe: CRFPipe) -> None:
        """RAISES (ValueError): CRF347 for a model whose weights do not follow from counts."""
        super().check_fit(pipe)
        if pipe.model.attrs["node"].traits.counts is None:
            raise cant_train(
                self,
                what=f"{pipe.model.name} of '{pipe.name}'",
                reason="its weights do not follow from counts",
                fitting="spacy_crf.LBFGS.v1",
            )
        pipe.warned.add(Warnings.CRFW465)  # who takes this optimizer knows that update changes nothing

    def step(self, objective: CorpusObjective, *, key: str) -> float:
        """Change nothing. RETURNS (float): 0, as there is no objective."""
        return 0.0


def HMM(
    words: str = "orth[0]",
    suffixes: int = 10,
    order: int = 1,
    smoothing: float = 0.2,
    em_iterations: int = 0,
    seed: int = 0,
    prune: float = 1e-3,
) -> Model[list[Doc], Union[ChainScores, HigherOrderScores]]:
    """A hidden Markov model (Rabiner 1989) after the example of TnT (Brants 2000). Training is counting, for which `initialize`
    reads the training data once.

    words (str): Template of the words that are counted; the shape of the word is added to it.
    suffixes (int): Letters of the longest ending that tells the tags of unknown words, from 0 to 10.
    order (int): Number of previous tags on which the probability of a tag depends, 1 or 2.
    smoothing (float): Number of occurrences that the estimates by the ending of a word, or by nothing, are worth beside the
        counts of the word.
    em_iterations (int): Iterations of the Baum-Welch algorithm, which learns from tokens without annotation.
    seed (int): Random seed of the first probabilities if no token is annotated.
    prune (float): With order 2, least probability of the tags and pairs of tags that are kept: of tags by the word alone (if
        there are more than 32), of pairs by a chain of order 1. 0 keeps all.
    """
    owner = "HMM"
    known: Any = checks.text(owner, "words", words) and parse_templates([words])
    is_single = len(known) == 1 and not any(
        is_item(part.attribute) or part.attribute in NGRAMS for part in known[0].parts
    )
    checks.expect(is_single, owner, "words", words, "one template with one value for each token, such as 'orth[0]'")
    suffixes = checks.count(owner, "suffixes", suffixes, least=0, most=10)
    templates = ["bias", _SHAPE, *(f"suffix{n}[0]|{_SHAPE}" for n in range(1, suffixes + 1)), f"{words}|{_SHAPE}"]
    em_iterations = checks.count(owner, "em_iterations", em_iterations, least=0)
    prune = checks.number(owner, "prune", prune, most=0.1)
    emissions = SparseEmissions(FeatureSet(templates))
    if em_iterations:  # without annotation every feature may go with every tag
        emissions.attrs.update(min_count=0, possible_states=True)
    trigrams = {
        "keep": 4.0 if prune else None,
        "transitions_from": "possible" if em_iterations else "seen",
        **dict.fromkeys(("keys", "parts", "thresholds")),
    }
    node = HMMNode() if checks.one_of(owner, "order", order, (1, 2)) == 1 else TrigramNode()
    if em_iterations:
        node.traits = node.traits._replace(counts="all")
    return build(
        "hmm",
        node,
        {"emissions": emissions},
        order=order,
        smoothing=checks.positive(owner, "smoothing", smoothing),
        em_iterations=em_iterations,
        seed=checks.count(owner, "seed", seed, least=0, most=checks.ANY),
        possible_transitions=True,
        prune=prune,
        **(trigrams if order == 2 else {}),
    )
