"""Output of earlier components that a component reads: annotation and vectors."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_ID, ENT_IOB, ENT_KB_ID, ENT_TYPE, HEAD, IDS
from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Model

from ..errors import Errors
from ..features.doc_batch import read_attributes
from .annotation.entities import same_words

_OF_ENTITIES = (ENT_TYPE, ENT_KB_ID, ENT_ID)  # 0 is also a value of tokens outside of entities


def annotator(nlp: Optional[Language], name: str, attributes: list[str]) -> Callable[[Example], Doc]:
    """A function that annotates copies of the predicted Docs of examples.

    The function applies the components in ``[training.annotating_components]`` before this one if they are ready: rule-based,
    sourced or frozen. Attributes that are then still unset, since their component is trained in the same run, come from the gold
    annotation.

    nlp (Language): The pipeline, or None to use the gold annotation alone.
    name (str): This component.
    attributes (list[str]): Token attributes that the templates read, except those that this component writes.
    RETURNS (Callable): Takes an example, and returns the annotated Doc.
    """
    components = [] if nlp is None else _annotators(nlp, name, learn=False).values()
    read = [IDS[attribute.upper()] for attribute in attributes]

    def annotate(example: Example) -> Doc:
        """Annotate a copy of the predicted Doc of an example."""
        # Copies take time, and nothing would change
        if not components and not read:
            return example.predicted
        doc = example.predicted.copy()
        for component in components:
            doc = component(doc)
        if read and same_words(doc, example.reference):
            values = read_attributes([doc], read)
            gold = read_attributes([example.reference], read)
            filled = np.where(_unset(doc, read, values), gold, values)  # uint64[T, C]
            if (filled != values).any():
                doc.from_array(read, filled)  # pyright: ignore[reportArgumentType]  takes uint64 too
        return doc

    return annotate


def _unset(doc: Doc, attributes: list[int], values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which values no component has set: bool[T, C], from uint64[T, C]. 0 may be a valid value: no entity, the root of a tree."""
    unset = values == 0
    for column, attribute in enumerate(attributes):
        if attribute in _OF_ENTITIES:
            unset[:, column] &= doc.to_array(ENT_IOB) == 0
        # The root of a tree is its own head, at a distance of 0
        elif attribute == HEAD:
            unset[:, column] &= not values[:, column].any()
    return unset


def annotators_that_learn(nlp: Language, name: str) -> list[str]:
    """Names of the annotating components of a pipeline (`nlp`) before the component `name` that are trained in the same run."""
    return list(_annotators(nlp, name, learn=True))


def _annotators(nlp: Language, name: str, *, learn: bool) -> dict[str, Callable[[Doc], Doc]]:
    """The annotating components before the component `name`, by their names: those that are trained in the same run (`learn`), or
    the others."""
    annotating = nlp.config["training"].get("annotating_components") or []
    names = nlp.component_names
    before = names[: names.index(name)] if name in names else []
    annotators = {}
    for other, component in nlp.components:
        is_trained = bool(getattr(component, "is_trainable", False)) and other not in nlp.disabled
        if other in before and other in annotating and is_trained == learn:
            annotators[other] = component
    return annotators


class Listener(NamedTuple):
    """A listener of spaCy, spacy-transformers or spacy-curated-transformers."""

    node: Model
    upstream: str  # name of the component it listens to, or "*"
    is_told: bool  # whether the upstream has sent it the vectors of a training batch
    asks_docs: bool = True  # whether it otherwise takes vectors from the Docs
    where: str = "doc._.trf_data"

    def has_vectors(self, doc: Doc) -> bool:
        """Whether a Doc has the vectors that the listener takes, or needs none."""
        if self.where == "doc.tensor":
            return doc.tensor.size > 0 or not len(doc)
        return not len(doc) or (Doc.has_extension("trf_data") and doc._.trf_data is not None)


def require_upstream(name: str, model: Model, nlp: Language) -> None:
    """RAISES (ValueError): CRF960 if no component of a pipeline (`nlp`) can be the upstream of a listener in the `model` of the
    component `name`."""
    listening = [id(node) for _, other in nlp.components for node in getattr(other, "listeners", ())]
    for listener in _listeners(model):
        if id(listener.node) not in listening:
            names = nlp.component_names  # the list includes frozen components, which are disabled during training
            before = names[: names.index(name)] if name in names else names
            raise ValueError(
                Errors.CRF960.format(name=name, upstream=listener.upstream, before=", ".join(before) or "none")
            )


def require_vectors(name: str, model: Model, docs: list[Doc], *, is_train: bool = False) -> None:
    """Check that Docs have the vectors that listeners read.

    name (str): The component.
    model (Model): Its model, with the listeners.
    docs (List[Doc]): The Docs.
    is_train (bool): Whether the component learns from them.
    RAISES (ValueError): CRF961 (in training) or CRF962 if the upstream of the component gave no vectors.
    """
    for listener in _listeners(model):
        if is_train and listener.is_told:
            continue
        # In training, listeners that ask no Docs have vectors only if their upstream has sent them, see above
        asks_docs = listener.asks_docs or not is_train
        missing = next((doc for doc in docs if not (asks_docs and listener.has_vectors(doc))), None)
        if missing is not None:
            error = Errors.CRF961 if is_train else Errors.CRF962
            raise ValueError(
                error.format(
                    name=name,
                    advice=_ADVICE[listener.asks_docs],
                    upstream=listener.upstream,
                    text=missing.text[:40],
                    where=listener.where,
                )
            )


def require_rest(name: str, model: Model, docs: list[Doc]) -> None:
    """RAISES (ValueError): CRF964 if the upstream of a listener in the `model` of the component `name` learns although it must
    not change; CRF962 if `docs` have no vectors."""
    for listener in _listeners(model):
        if listener.is_told:
            raise ValueError(Errors.CRF964.format(name=name, upstream=listener.upstream))
    require_vectors(name, model, docs)


def add_vectors(model: Model, doc: Doc) -> None:
    """Give a Doc a ``doc.tensor`` of zeros if a `model` listens to vectors there that the Doc does not have."""
    for listener in _listeners(model):
        if listener.where == "doc.tensor" and not listener.has_vectors(doc):
            zeros: Any = listener.node.ops.alloc2f(len(doc), listener.node.get_dim("nO"))
            doc.tensor = zeros


# Advice if the upstream is frozen
_ADVICE = {
    True: "name it in annotating_components too",
    False: "take it out of there, and set frozen = true in its own block",
}


def _listeners(model: Model) -> Iterator[Listener]:
    """The listeners in a model."""
    node: Any  # listeners of other packages are no subclasses of a common one
    for node in model.walk():
        # Batch ids and states are all that tells whether an upstream has sent vectors; no library has a method for it
        if isinstance(node, Tok2VecListener):
            yield Listener(node, node.upstream_name, node._batch_id is not None, where="doc.tensor")
        elif hasattr(node, "upstream_name"):  # spacy-transformers
            yield Listener(node, node.upstream_name, node._batch_id is not None)
        elif "_upstream_name" in node.attrs:  # spacy-curated-transformers
            state = node.attrs["_state"]
            yield Listener(node, node.attrs["_upstream_name"], state.batch_id is not None, asks_docs=False)
