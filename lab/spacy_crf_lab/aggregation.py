"""One annotation from several: of annotators who disagree, or of rules and models that label the same texts (weak supervision).

A hidden Markov model explains what the sources say: the tags of the truth follow each other, and each source says something about
each of them with probabilities of its own, its confusions (Dawid & Skene 1979; with transitions, Lison, Barnes, Hubin & Touileb
2020, skweak). The words are one more source: a word that many agree on in one text helps where a single one marks it. All
of it is learned from what the sources say, without any truth (`baum_welch`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

import numpy as np
from spacy.tokens import Doc, SpanGroup
from spacy.util import filter_spans

from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.pruned_lattice import Orders
from spacy_crf.inference.structure import SpanStates
from spacy_crf.schemes import BEGIN, INSIDE, MISSING, OUTSIDE, Segments, get_scheme
from spacy_crf.types import Floats, Ints

from .baum_welch import Estimates, Observed, Priors, baum_welch, maximize, scores_of
from .counting import Counts

_BIO = get_scheme("BIO")
# Numbers added to those of transitions and confusions, and to those of words. Of the words, 0.2 to 2 do about as well
_SMOOTHING = 0.1
_OF_WORDS = 1.0


class Reliability(NamedTuple):
    """How reliable the model estimates a source to be."""

    texts: int  # that it has annotated
    precision: float  # share of the tokens in its spans that have this tag in truth
    recall: float  # share of the tokens in entities that it tags as in truth


class Aggregated(NamedTuple):
    """The aggregated annotation of all texts, laid end to end."""

    spans: Segments  # all spans that have some probability, by their first token
    probabilities: Floats  # [N] of these spans
    outside: Floats  # [T] probability that a token is outside of all entities
    sources: list[Reliability]

    def of_tokens(self, tokens: slice) -> "Aggregated":
        """The part of the annotation that belongs to one text."""
        here = slice(*np.searchsorted(self.spans.start, [tokens.start, tokens.stop]))
        spans = Segments(
            self.spans.start[here] - tokens.start, self.spans.end[here] - tokens.start, self.spans.label[here]
        )
        return Aggregated(spans, self.probabilities[here], self.outside[tokens], self.sources)


def votes(docs: Sequence[Doc], keys: Sequence[str], labels: Sequence[str]) -> Ints:
    """The tag that each source gives each token: int64[J, T], -1 in Docs that it did not see, which lack its key.

    keys (Sequence[str]): For each source a key of ``doc.spans``. Of spans that overlap the longest counts.
    """
    number = {label: n for n, label in enumerate(labels)}
    starts = DocBatch.of(docs).bounds
    # [J, T] boundary and label of each source at each token
    iob = np.full((len(keys), starts[-1]), MISSING, dtype=np.int64)
    label = iob.copy()
    for doc, start in zip(docs, starts.tolist()):
        for source, key in enumerate(keys):
            group: Optional[SpanGroup] = doc.spans.get(key)
            if group is not None:
                iob[source, start : start + len(doc)] = OUTSIDE
                for span in filter_spans(span for span in group if span.label_ in number):
                    tokens = slice(start + span.start, start + span.end)
                    iob[source, tokens] = INSIDE
                    label[source, tokens] = number[span.label_]
                    iob[source, start + span.start] = BEGIN
    return np.array([_BIO.encode(*of_source, starts) for of_source in zip(iob, label)], dtype=np.int64)


def aggregate(
    said: Ints,
    words: Ints,
    starts: Ints,
    n_labels: int,
    *,
    iterations: int = 5,
    min_prob: float = 0.05,
    say: Callable[[int, float], None] = lambda iteration, log_likelihood: None,
) -> Aggregated:
    """Aggregate what sources say.

    said (int64[J, T]): BIO tags, as `votes` returns them. words (int64[T]): Number of each word. starts (int64[D + 1]): Bounds of
        the texts.
    min_prob (float): Least probability of the spans that are returned.
    say (Callable[[int, float], None]): Called with the number of each iteration, and the log-likelihood before it.
    """
    allowed = _BIO.transition_mask(n_labels)
    size = 1 + 2 * n_labels
    n_tokens = len(words)
    orders = Orders(1, np.zeros(0, dtype=np.int64), size)
    prior = Priors(_SMOOTHING, [*[_SMOOTHING] * len(said), _OF_WORDS])
    codes = np.vstack([said, words])
    weights = np.ones(len(starts) - 1)
    text = Observed(codes, np.ones((n_tokens, size), dtype=bool), starts, weights)
    # The first iteration takes the tags that most sources give for the truth
    most = np.array([(said == tag).sum(axis=0) for tag in range(size)]).argmax(axis=0)
    counts = Counts.none(size, orders.keys)
    numbers = [np.zeros((size, size)) for _ in said]
    counts.add(most, starts, np.ones(n_tokens))
    numbers.append(np.zeros((1 + words.max(initial=-1), size)))
    for of_source, found in zip(codes, numbers):
        np.add.at(found, (of_source[of_source >= 0], most[of_source >= 0]), 1.0)
    estimates = baum_welch([text], Estimates(counts, numbers), allowed, prior, orders, iterations, say)
    scores = scores_of(maximize(estimates, allowed, prior), text, orders)
    # The posterior of the truth given what all sources say is a chain, so spans have exact probabilities
    structure = LinearChain()
    of_tags = structure.marginals(scores)
    # In BIO the states 1 + 2·label and 2 + 2·label begin and continue a span
    spans = SpanStates.even(_BIO.continues(n_labels), n_labels, offset=1, width=2)
    segments, probabilities = structure.likely_spans(scores, spans, min_prob)
    sources = [_reliability(of_source, of_tags, starts) for of_source in said]
    return Aggregated(segments, probabilities, of_tags[:, 0], sources)


def _reliability(codes: Ints, of_tags: Floats, starts: Ints) -> Reliability:
    """codes (int64[T]): What one source says. of_tags (float64[T, S]): Probabilities of the tags."""
    [seen] = np.nonzero(codes >= 0)
    # Expected numbers in place of counts: the truth itself is not known
    right = of_tags[seen, codes[seen]]
    marks = codes[seen] > 0
    there = len(seen) - of_tags[seen, 0].sum()
    texts = np.unique(np.searchsorted(starts, seen, side="right"))
    found = right[marks].sum()
    return Reliability(len(texts), float(found / max(1, marks.sum())), float(found / max(1e-12, there)))
