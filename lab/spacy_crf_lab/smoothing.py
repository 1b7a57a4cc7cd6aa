"""Labels of equal texts that fit together, as a step after any component that writes `doc.ents`.

The variables are places: the entities of a Doc, and each other place with the text of an entity that no entity touches. A place
keeps its tokens, and gets one of the labels of the Doc or none. (Were the variables tokens, one label could tear an entity apart,
and each tag scheme would need rules of its own.) The best labelling of all places is that of a graph without chains:

    sum over places of score[label] + sum over tied places of strength[label] if both have this label

    score["labels"]  = 0 for the label that the component has given, -price for others
    score["beam"]    = log p[label] - log p[the component's label], from 0 down to -price, by the beam of spaCy's `ner`
    score["probabilities"] = the same, of a component of this package

So without ties the component's labels are the best ones.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.pipeline import EntityRecognizer
from spacy.tokens import Doc, Span

from spacy_crf import checks
from spacy_crf.errors import no_component
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.optimizers.objective import check_settings, setting
from spacy_crf.pipeline.candidates import LaterPipe
from spacy_crf.pipeline.prediction import OTHERS, CRFPipe

from .ties.dual_decomposition import DualDecomposition
from .ties.layer import check_templates
from .ties.method import Inference
from .ties.scores import TiedScores, Ties
from .ties.structure import TiedChains

NONE = ""  # the label of places that are no entity
NO_ENTITY = "O"  # its name in the settings
_LEAST = 1e-300  # least probability
_BEAM = 16  # parses in the beam
_DENSITY = 1e-4  # share of the best parse that a parse needs to stay in the beam

Probabilities = dict[tuple[int, int, str], float]  # by first token, token behind the last, and label


class Place(NamedTuple):
    """A variable: the tokens of an entity, or tokens that may be one."""

    start: int
    end: int
    label: str
    ent: Optional[Span]  # None for a place that is no entity


def _strength(owner: str, name: str, value: object) -> object:
    if not isinstance(value, (Mapping, list, tuple)):
        return checks.number(owner, name, value)
    checks.expect("" not in value, owner, name, value, f'a table in which "{NO_ENTITY}" stands for no entity')
    table = checks.by_label(owner, name, value, "rewards")
    return {label: checks.number(owner, f"{name} of '{label}'", reward) for label, reward in table.items()}


def _cliques(owner: str, name: str, value: object) -> object:
    templates = check_templates(owner, value)
    for template, given in templates.items():
        checks.one_of(owner, f"cliques.{template}.edges", given.edges, ("next", "all", "hub"))
    return templates


def _inference(owner: str, name: str, value: Any) -> Inference:
    checks.expect(
        isinstance(value, Inference), owner, name, value, "a method such as spacy_crf_lab.DualDecomposition.v1"
    )
    return value


@dataclass(eq=False)
class Smoothing:
    """How labels of places are weighed against each other.

    scores (str): Scores of labels: "labels", those that the component gave; "beam", the beam of spaCy's `ner`; or
        "probabilities", those of a component of this package.
    price (float): The most that another label than the component's costs, in nats.
    strength (Union[float, Dict[str, float]]): Reward of two tied places with the same label; or a table by label, with "O" for no
        entity, and "*" for what the table does not name.
    cliques (Optional[Dict[str, TieTemplate]]): Templates, such as `spacy_crf_lab.RepeatedWords.v1`, whose ties of tokens tie the
        places of these tokens. By default a place is tied to the next one with the same text.
    inference (Optional[Inference]): A method that finds best labellings, by default `spacy_crf_lab.DualDecomposition.v1`.
    RAISES (ValueError): CRF020 for settings that are not possible.
    """

    scores: str = setting("labels", checks.one_of, allowed=("labels", "beam", "probabilities"))
    price: float = setting(2.0, checks.positive)
    strength: Any = setting(1.0, _strength)
    cliques: Any = setting(None, _cliques)
    inference: Any = setting(None, _inference)

    def __post_init__(self) -> None:
        check_settings(self)
        self.structure = TiedChains(DualDecomposition() if self.inference is None else self.inference)

    def labels_of(self, places: list[Place], pairs: NDArray[np.int32], likely: Optional[Probabilities]) -> list[str]:
        """The best labels of the places of a Doc.

        pairs (int32[2, E]): Tied places. likely (Dict[Tuple[int, int, str], float]): Probabilities of spans, None if only the
            labels of the component are known.
        """
        labels = list(dict.fromkeys([NONE, *(place.label for place in places), *(label for *_, label in likely or ())]))
        own = np.full((len(places), len(labels)), -self.price)
        for n, place in enumerate(places):
            own[n, labels.index(place.label)] = 0.0
            if likely is None:
                continue
            p = np.array([likely.get((place.start, place.end, label), 0.0) for label in labels])
            # What is left over is for no entity
            p[0] = max(0.0, 1.0 - p.sum())
            of_own = p[labels.index(place.label)]
            # spaCy's ner is not trained with a beam: where the beam contradicts it, F1 was better without the beam
            if of_own > 0.0 and (self.scores == "probabilities" or of_own == p.max()):
                own[n] = np.clip(np.log(np.maximum(p, _LEAST) / of_own), -self.price, 0.0)
        # [1, L, L] two tied places are rewarded for the same label
        table = np.diag([self._reward(label) for label in labels])[np.newaxis]
        kinds = np.zeros(pairs.shape[1], dtype=np.int32)
        none = np.zeros(len(labels))
        source, target = pairs
        ties = Ties(source, target, kinds, np.zeros((1, 1), dtype=np.int32), np.zeros(1, dtype=bool))
        steps = np.zeros((len(labels), len(labels)))
        # Each place is a sequence of its own
        starts = np.arange(len(places) + 1)
        scores = TiedScores(own, steps, none, none, table, np.arange(len(labels)), ties, starts)
        return [labels[state] for state in self.structure.viterbi(scores).states.tolist()]

    def _reward(self, label: str) -> float:
        strength = self.strength
        if not isinstance(strength, dict):
            return strength
        return strength.get(label or NO_ENTITY, strength.get(OTHERS, 0.0))

    def tied(self, doc: Doc, places: list[Place]) -> NDArray[np.int32]:
        """The pairs of places that are tied: int32[2, E]."""
        found: set[tuple[int, int]] = set()
        if self.cliques is None:
            latest: dict[tuple[int, ...], int] = {}
            for n, place in enumerate(places):
                text = _text(doc, place)
                found |= {(latest[text], n)} if text in latest else set()
                latest[text] = n
        else:
            of_token = {}
            for n, place in enumerate(places):
                of_token.update(dict.fromkeys(range(place.start, place.end), n))
            for template in self.cliques.values():
                for ends in np.transpose(template.find(DocBatch([doc]))).tolist():
                    one, other = sorted(of_token.get(t, -1) for t in ends)
                    found |= {(one, other)} if -1 < one < other else set()
        return np.array(sorted(found), dtype=np.int32).reshape(-1, 2).T.copy()


class CRFSmooth(LaterPipe):
    """Gives equal texts of a Doc labels that fit together (factory ``crf_smooth``). A Doc without ties stays as it is; so do
    entities whose label stays.

    nlp (Language): The pipeline with the other component. For the settings see `make_crf_smooth`.
    RAISES (ValueError): CRF020 for settings that are not possible.
    """

    def __init__(self, nlp: Language, name: str, *, component: str, smoothing: Smoothing):
        super().__init__(nlp, name, component)
        self.smoothing = smoothing

    def _write(self, docs: list[Doc]) -> None:
        smoothing = self.smoothing
        tied = []
        for doc in docs:
            places = _places(doc)
            pairs = smoothing.tied(doc, places)
            tied += [(doc, places, pairs)] if pairs.size else []
        likely = self._probabilities([doc for doc, *_ in tied])
        for (doc, places, pairs), probabilities in zip(tied, likely):
            labels = smoothing.labels_of(places, pairs, probabilities)
            changed = [(place, label) for place, label in zip(places, labels) if label != place.label]
            entities = [Span(doc, place.start, place.end, label=label) for place, label in changed if label != NONE]
            outside = [place.ent for place, label in changed if label == NONE]
            if changed:
                doc.set_ents(entities, outside=outside, default="unmodified")
        smoothing.structure.inference.warn_unconverged(self.name)

    def _probabilities(self, docs: list[Doc]) -> list[Optional[Probabilities]]:
        """Probabilities of the spans of each Doc; None for each if the labels are enough.

        RAISES (ValueError): CRF710 if the component does not give them.
        """
        scores = self.smoothing.scores
        pipe = dict(self._nlp.components).get(self.component)
        if scores == "labels" or not docs:
            return [None] * len(docs)
        if scores == "probabilities":
            if not isinstance(pipe, CRFPipe):
                raise no_component("that gives probabilities of spans", self._nlp.component_names, self.component)
            least = math.exp(-self.smoothing.price) / 2.0
            found = []
            for doc in docs:
                spans = pipe.span_probabilities(doc, least)
                found.append({(span.start, span.end, span.label_): p for span, p in spans})
            return found
        if not isinstance(pipe, EntityRecognizer):
            raise no_component("that is spaCy's own ner", self._nlp.component_names, self.component)
        ner: Any = pipe
        return [_of_beam(ner, doc) for doc in docs]


def _places(doc: Doc) -> list[Place]:
    """The entities of a Doc, and each other place with the text of one that no entity touches, in their order."""
    places = [Place(ent.start, ent.end, ent.label_, ent) for ent in doc.ents]
    lengths = defaultdict(set)  # of the texts of entities, by their first word
    texts = {_text(doc, place) for place in places}
    for text in texts:
        lengths[text[0]].add(len(text))
    is_free = [not token.ent_type and token.ent_iob_ != "B" for token in doc]  # "B" without a type: blocked
    for place in places:
        is_free[place.start : place.end] = [False] * (place.end - place.start)
    # Longest first, as for entities: "New York City" before "New York"
    t = 0
    while t < len(doc):
        step = 1
        for length in sorted(lengths.get(doc[t].orth, ()), reverse=True):
            place = Place(t, t + length, NONE, None)
            if all(is_free[t : t + length]) and t + length <= len(doc) and _text(doc, place) in texts:
                places.append(place)
                step = length
                break
        t += step
    return sorted(places, key=lambda place: place.start)


def _of_beam(ner: Any, doc: Doc) -> Probabilities:
    """Probabilities of spans by the beam of each sentence: one for a long Doc would have parses that differ at its end only."""
    parts = [sentence.as_doc() for sentence in doc.sents] if doc.has_annotation("SENT_START") else [doc.copy()]
    for part in parts:  # entities that are there would be part of all parses
        part.set_ents([], default="missing")
    found = {}
    begin = 0
    for part, of_part in zip(parts, ner.scored_ents(ner.beam_parse(parts, _BEAM, beam_density=_DENSITY))):
        found |= {(begin + start, begin + end, label): p for (start, end, label), p in of_part.items()}
        begin += len(part)
    return found


def _text(doc: Doc, place: Place) -> tuple[int, ...]:
    return tuple(token.orth for token in doc[place.start : place.end])
