"""Components whose encoder is another component's, to which they listen: whether that has spoken.

Where it has not, spaCy's listeners give vectors of zeros, and others end in an assertion.
"""

from collections.abc import Iterator
from typing import NamedTuple, Optional

from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from thinc.api import Model

from ..errors import Errors


class Listener(NamedTuple):
    """Of spaCy, spacy-transformers or spacy-curated-transformers."""

    node: Model
    upstream: str  # the name of the component, or "*"
    is_told: bool  # whether its upstream has told it the vectors of a batch to learn from
    asks_docs: bool = True  # whether it looks for them in the Docs where it has not
    where: str = "doc._.trf_data"

    def hears(self, doc: Doc) -> bool:
        """Whether a Doc has vectors, if it needs any."""
        if self.where == "doc.tensor":
            return doc.tensor.size > 0 or not len(doc)
        return not len(doc) or (Doc.has_extension("trf_data") and doc._.trf_data is not None)


def require_upstream(name: str, model: Model, nlp: Language) -> None:
    """RAISES (ValueError): CRF960 if a listener has nothing to listen to."""
    heard = [id(node) for _, other in nlp.components for node in getattr(other, "listeners", ())]
    for listener in _listeners(model):
        if id(listener.node) not in heard:
            names = nlp.component_names  # those that are frozen are disabled meanwhile
            before = names[: names.index(name)] if name in names else names
            values = {"upstream": listener.upstream, "before": ", ".join(before) or "none"}
            raise ValueError(Errors.CRF960.format(name=name, **values))


def require_vectors(name: str, model: Model, docs: list[Doc], *, is_train: bool = False) -> None:
    """RAISES (ValueError): CRF961, CRF962 if there are none of what the component listens to."""
    for listener in _listeners(model):
        if is_train and listener.is_told:
            continue
        hears = listener.hears if listener.asks_docs or not is_train else (lambda doc: False)
        missing = next((doc for doc in docs if not hears(doc)), None)
        if missing is not None:
            error = Errors.CRF961 if is_train else Errors.CRF962
            values = {"upstream": listener.upstream, "text": missing.text[:40], "where": listener.where}
            raise ValueError(error.format(name=name, advice=_ADVICE[listener.asks_docs], **values))


def require_rest(name: str, model: Model, docs: list[Doc]) -> None:
    """RAISES (ValueError): CRF964 if what a component listens to learns, though it shall stay as it is; CRF962."""
    for listener in _listeners(model):
        if listener.is_told:
            raise ValueError(Errors.CRF964.format(name=name, upstream=listener.upstream))
    require_vectors(name, model, docs)


def with_vectors(model: Model, doc: Doc) -> Optional[Doc]:
    """Give a Doc vectors of zeros where its component listens to some that it has not. RETURNS (Doc): None where it can't be
    given any: those of a transformer are no simple array."""
    for listener in _listeners(model):
        if not listener.hears(doc):
            if listener.where != "doc.tensor":
                return None
            doc.tensor = listener.node.ops.alloc2f(len(doc), listener.node.get_dim("nO"))
    return doc


# Where the upstream is frozen
_ADVICE = {
    True: "name it in annotating_components too",
    False: "take it out of there, and set frozen = true in its own block",
}


def _listeners(model: Model) -> Iterator[Listener]:
    for node in model.walk():
        if isinstance(node, Tok2VecListener):
            yield Listener(node, node.upstream_name, node._batch_id is not None, where="doc.tensor")
        elif hasattr(node, "upstream_name"):  # spacy-transformers
            yield Listener(node, node.upstream_name, node._batch_id is not None)
        elif "_upstream_name" in node.attrs:  # spacy-curated-transformers
            state = node.attrs["_state"]
            yield Listener(node, node.attrs["_upstream_name"], state.batch_id is not None, asks_docs=False)
