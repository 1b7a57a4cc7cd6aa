"""Templates that find nothing, since they read what no Doc of the training data has: a tagger that is missing, say."""

from spacy.tokens import Doc, Token

from ..errors import Warnings
from .parts import Component

# Every Doc has these
_ALWAYS = ("norm", "lang", "spacy")


class MissingAttributes:
    """What a component's templates read of the output of others, and no Doc had so far.

    pipe (Component): The component.
    """

    def __init__(self, pipe: Component):
        self._pipe = pipe
        self._attributes = {name for name in pipe.token_attributes if name not in _ALWAYS}
        names = {name for features in pipe.feature_stores for name in features.feature_set.extensions}
        # A getter, or a default, gives every Doc a value
        self._extensions = {name for name in names if not any(x is not None for x in Token.get_extension(name)[:3])}
        self._n_docs = 0

    def look_at(self, docs: list[Doc]) -> None:
        """Ends as soon as everything was found."""
        self._n_docs += len(docs)
        for doc in docs:
            if not self._attributes and not self._extensions:
                return
            self._attributes -= {name for name in self._attributes if doc.has_annotation(name.upper())}
            if self._extensions:
                self._extensions -= {key[1] for key in doc.user_data if key[0] == "._."}

    def tell(self) -> None:
        """Warns of what is left."""
        names = sorted(self._attributes) + sorted(f"ext:{name}" for name in self._extensions)
        if self._n_docs and names:
            self._pipe.warn(Warnings.CRFW885, attributes=", ".join(names), n=self._n_docs)
