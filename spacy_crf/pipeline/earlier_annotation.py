"""What features find of earlier components' output when they are counted.

While `spacy train` initializes a pipeline the predicted Docs hold nothing but words. Templates such as ``tag[-1]`` would
count no features, so they are counted on copies that have the annotation training will bring.
"""

from collections.abc import Callable
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_ID, ENT_IOB, ENT_KB_ID, ENT_TYPE, HEAD, IDS, ORTH
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from .annotation.annotation import same_words

_OF_ENTITIES = (ENT_TYPE, ENT_KB_ID, ENT_ID)  # 0 outside of entities too


class EarlierAnnotation:
    """Annotates copies of the predicted Docs of examples.

    Components in ``[training.annotating_components]`` before this one are applied if they are ready: rule-based, sourced or
    frozen. Attributes that are unset after that, since their component is trained in the same run, come from the gold
    annotation.

    nlp (Language): The pipeline, or None to use the gold annotation alone.
    name (str): This component.
    attributes (list[str]): Token attributes that the templates read, but for those that this component writes.
    """

    def __init__(self, nlp: Optional[Language], name: str, attributes: list[str]):
        self._components = [] if nlp is None else [pipe for _, pipe, is_ready in _annotating(nlp, name) if is_ready]
        self._attributes = [IDS[attribute.upper()] for attribute in attributes]

    def __call__(self, example: Example) -> Doc:
        if not self._components and not self._attributes:
            return example.predicted
        doc = example.predicted.copy()
        for component in self._components:
            doc = component(doc)
        if self._attributes and same_words(doc, example.reference):
            ids = [ORTH, *self._attributes]  # two at least, for an array with two axes
            values, gold = doc.to_array(ids), example.reference.to_array(ids)
            unset = self._unset(doc, values[:, 1:])
            gold = np.where(unset, gold[:, 1:], values[:, 1:])
            if (gold != values[:, 1:]).any():
                doc.from_array(ids[1:], gold)
        return doc

    def _unset(self, doc: Doc, values: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which values no component has set: bool[T, C] of uint64[T, C]. 0 may be an answer: no entity, the root of a tree."""
        unset = values == 0
        for column, attribute in enumerate(self._attributes):
            if attribute in _OF_ENTITIES:
                unset[:, column] &= doc.to_array(ENT_IOB) == 0
            elif attribute == HEAD:
                unset[:, column] &= not values[:, column].any()
        return unset


def annotators_that_learn(nlp: Language, name: str) -> list[str]:
    """Names of the annotating components before this one that are trained in the same run."""
    return [other for other, _, is_ready in _annotating(nlp, name) if not is_ready]


def _annotating(nlp: Language, name: str) -> list[tuple[str, Callable[[Doc], Doc], bool]]:
    """The annotating components before one: their names, and whether they are ready."""
    annotating = nlp.config["training"].get("annotating_components") or []
    names = nlp.component_names
    before = names[: names.index(name)] if name in names else []
    return [
        (other, component, other in nlp.disabled or not getattr(component, "is_trainable", False))
        for other, component in nlp.components
        if other in before and other in annotating
    ]
