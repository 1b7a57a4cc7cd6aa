"""The component that gives every token a label of each of several attributes: a set of chains over the same tokens."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

import numpy as np
from spacy.tokens import Doc

from .. import checks
from ..errors import Errors
from ..inference.chain_set import split
from ..schemes import Segments
from ..types import Floats, PathScores
from .annotation.entities import Prediction
from .annotation.tags import TagSet, TokenTags
from .chain_set import Chain, ChainSetPipe
from .crf_tagger import CRFTagger
from .decoding import Parts
from .prediction import OTHERS, label_thresholds, predict
from .probabilities import write_probabilities


class FoundTags(NamedTuple):
    """The labels of a batch of Docs."""

    chains: list[Prediction]

    @property
    def probabilities(self) -> Floats:
        """The probability of each label, chain by chain: float64[N]."""
        of_chains = [found.probabilities for found in self.chains if found.probabilities is not None]
        return np.concatenate(of_chains)

    def of_docs(self) -> list[bytes]:
        """A value for each Doc, equal in two predictions that find the same."""
        of_chains = [found.of_docs() for found in self.chains]
        return [*map(b"".join, zip(*of_chains))]


class TagChain(Chain):
    """The chain of one attribute."""

    def __init__(self, of: "CRFTaggerSet", annotation: TokenTags):
        places = np.array([of.labels.index(label) for label in annotation.labels], dtype=np.int64)
        super().__init__(of, annotation, annotation.labels, places)

    def parts(self) -> Parts:
        """Take over the present settings of the set, and return the parts by which the chain predicts."""
        self.cfg |= {name: self.of.cfg[name] for name in ("confidence", "decode", "min_prob")}
        self.decoder = self.of.decoder
        # A table names labels of all chains
        least = self.cfg["min_prob"]
        if isinstance(least, dict):
            self.cfg["min_prob"] = {name: p for name, p in least.items() if name in (*self.labels, OTHERS)}
        return super().parts()


class CRFTaggerSet(ChainSetPipe, CRFTagger):
    """Gives every token a label of each of several attributes (factory ``crf_tagger`` with a list of attributes). Labels have the
    attribute in front, such as "tag:NN"."""

    annotation: TagSet

    def annotation_of(self, attribute: Sequence[str], *, overwrite: bool, neg_prefix: str) -> TagSet:
        """The annotation of several attributes.

        attribute (Sequence[str]): Their names.
        overwrite (bool), neg_prefix (str): See `TokenTags`.
        RAISES (ValueError): CRF020, or CRF406 for an attribute that tokens do not have.
        """
        is_list = isinstance(attribute, (list, tuple)) and len(attribute) > 0
        checks.expect(is_list, self.owner, "attribute", attribute, "an attribute, or a list of attributes")
        written = []
        for one in attribute:
            part = super().annotation_of(one, overwrite=overwrite, neg_prefix=neg_prefix)
            written += part.writes or [one]
        twice = ", ".join(sorted({name for name in written if written.count(name) > 1}))
        checks.expect(
            not twice, self.owner, "attribute", attribute, f"a list that has everything once, not {twice} twice"
        )
        checks.expect(
            not any(":" in name for name in attribute),
            self.owner,
            "attribute",
            attribute,
            "a list of names without colons, which end them in labels",
        )
        return TagSet(attribute, overwrite=overwrite, neg_prefix=neg_prefix)

    def check_settings(self) -> None:
        """Check the settings against the labels. RAISES (ValueError): CRF407 for an attribute without labels, and as
        `ChainSetPipe.check_settings`."""
        for part in self.annotation.parts:
            if not part.labels:
                raise ValueError(Errors.CRF407.format(name=self.name, attribute=part.attribute))
        super().check_settings()

    def make_chains(self) -> list[TagChain]:
        """A chain for each attribute."""
        return [TagChain(self, part) for part in self.annotation.parts]

    def chain(self, label: str) -> TagChain:
        """The chain of an attribute or of a label (`label`). RAISES (ValueError): CRF846 for unknown ones."""
        names = [part.attribute for part in self.annotation.parts]
        return self.chains[names.index(label)] if label in names else super().chain(label)

    # ------------------------------------------------------------------------------------------------ prediction

    def predict(self, docs: Iterable[Doc], scores: Optional[PathScores] = None) -> FoundTags:
        """The labels of each attribute, see `CRFPipe.predict`.

        docs (Iterable[Doc]): A batch of Docs, which are not changed.
        scores (Optional[PathScores]): The model's scores of the Docs; None to compute them.
        """
        batch = self.require_ready(docs)
        label_thresholds(self.name, self.cfg["min_prob"], self.labels)  # raises an error for unknown labels
        scores = self.model.predict(batch) if scores is None else scores
        scores_of_chains = split(scores, [chain.states for chain in self.chains])
        return FoundTags(
            [predict(chain.parts(), batch, own_scores) for chain, own_scores in zip(self.chains, scores_of_chains)]
        )

    def set_annotations(self, docs: Iterable[Doc], found: FoundTags) -> None:
        """Write the labels beside those that are present, which count as certain. ``token._.crf_prob`` is the probability that
        all labels of a token are right: the product, since the chains are independent given the words.

        docs (Iterable[Doc]): The batch.
        found (FoundTags): Its labels, from `predict`.
        """
        docs = list(docs)
        for vocab in {doc.vocab for doc in docs}:
            self.annotation.add_labels_to(vocab)
        n_tokens = int(found.chains[0].doc_starts[-1])
        together = np.ones(n_tokens)  # [T] probability of all new labels
        has_new = np.zeros(n_tokens, dtype=bool)
        is_present = np.zeros_like(has_new)
        for chain, of_chain in zip(self.chains, found.chains):
            present = chain.annotation.write(docs, of_chain).start
            is_present[present] = True
            if of_chain.probabilities is not None:
                tokens = np.flatnonzero(of_chain.tags >= 0)
                new = ~np.isin(tokens, present)
                together[tokens[new]] *= of_chain.probabilities[new]
                has_new[tokens[new]] = True
        if self.cfg["confidence"]:
            unchanged = np.flatnonzero(is_present & ~has_new)  # tokens whose present labels are all that is written
            # Tag 0 stands for any label: only the places of the tokens count
            whole = found.chains[0]._replace(tags=np.where(has_new, 0, -1), certainties={"crf_prob": together[has_new]})
            write_probabilities(docs, whole, self.decoding, Segments(unchanged, unchanged + 1, unchanged))
