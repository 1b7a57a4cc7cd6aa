"""What features find of earlier components' output when they are counted.

While `spacy train` initializes a pipeline the predicted Docs hold nothing but words. Templates such as ``tag[-1]`` would
count no features, so they are counted on copies that have the annotation training will bring.
"""

from collections.abc import Callable
from typing import Optional

from spacy.attrs import IDS, ORTH
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example


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
        if self._attributes and _same_words(doc, example.reference):
            ids = [ORTH, *self._attributes]  # two at least, for an array with two axes
            values, gold = doc.to_array(ids), example.reference.to_array(ids)
            unset = values == 0
            if len(doc) and (gold[unset] != 0).any():
                values[unset] = gold[unset]
                doc.from_array(ids[1:], values[:, 1:])
        return doc


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


def _same_words(doc: Doc, other: Doc) -> bool:
    return len(doc) == len(other) and bool((doc.to_array(ORTH) == other.to_array(ORTH)).all())
