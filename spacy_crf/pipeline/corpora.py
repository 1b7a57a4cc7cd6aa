"""Corpora of `spacy train`: a reader that keeps what it reads, batchers, and files of Docs.

Training data lives as long as the training, and the garbage collector skips it. Otherwise Python searches all objects whenever
their number has grown by a quarter: 0.1 s each time after spaCy's imports, and 0.2 s with 8,000 Docs, which took a tenth of a
training run (mit_restaurant).
"""

import atexit
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Optional, TypeVar
from weakref import WeakKeyDictionary

import srsly
from spacy import training
from spacy.errors import Errors as SpacyErrors
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.vocab import Vocab
from srsly.msgpack import Packer

# The texts read last for each pipeline, and the settings of the reader: training uses other reader objects than initialization
_read_last: "WeakKeyDictionary[Language, tuple[tuple, list[Example]]]" = WeakKeyDictionary()


class Corpus(training.Corpus):
    """spaCy's reader with a cache (``spacy_crf.Corpus.v1``): it reads the dev set once for all evaluations, and the training data
    once for the initialization of all components and for training.

    path (Path): The .spacy file, or a folder of them.
    gold_preproc (bool): Whether the predicted Docs are the sentences and tokens of the annotation.
    max_length (int): Longer Docs are split into their sentences. 0 for no limit.
    limit (int): Maximum number of Docs to read, 0 for no limit.
    augmenter (Callable): Makes further Examples, which are cached as well.
    """

    def __init__(
        self,
        path: Optional[Path],
        gold_preproc: bool = False,
        max_length: int = 0,
        limit: int = 0,
        augmenter: Optional[Callable] = None,
    ):
        if path is None:
            raise ValueError(SpacyErrors.E913)
        super().__init__(path, gold_preproc=gold_preproc, max_length=max_length, limit=limit, augmenter=augmenter)
        self._settings = (str(path), gold_preproc, max_length, limit)
        self._kept: Optional[tuple[Language, list[Example]]] = None
        self._augments = augmenter is not None

    def __call__(self, nlp: Language) -> Iterator[Example]:
        if getattr(nlp.tokenizer, "is_learning", False):
            # The Docs of a tokenizer that has not learned yet are of no use later
            yield from super().__call__(nlp)
        elif self._kept is None or self._kept[0] is not nlp:
            yield from self._read(nlp)
        else:
            yield from self._kept[1]

    def read_docbin(self, vocab: Vocab, locs: Iterable[str | Path]) -> Iterator[Doc]:
        """Read the Docs of files, without empty ones, up to the limit."""
        docs = (doc for loc in locs for doc in docs_in(DocBin().from_disk(loc), vocab) if len(doc))
        yield from islice(docs, self.limit if self.limit >= 1 else None)

    def _read(self, nlp: Language) -> Iterator[Example]:
        """Yield the examples, and keep them: for this reader in `_kept`, for the next one in `_read_last`."""
        # A reader that read the same file for this pipeline, as at initialization, has left its texts
        settings, examples = _read_last.pop(nlp, (None, []))
        if settings != self._settings or self._augments:
            examples = []
            for example in super().__call__(nlp):
                examples.append(example)
                yield example
            _read_last[nlp] = self._settings, examples
        else:
            yield from examples
        self._kept = nlp, examples


Item = TypeVar("Item")


def full_batch() -> Callable[[Iterable[Item]], Iterable[list[Item]]]:
    """Batcher that puts all texts into one batch, for optimizers that use the whole corpus in each step
    (``spacy_crf.full_batch.v1``)."""

    def batch(items: Iterable[Item]) -> Iterable[list[Item]]:
        yield list(items)

    return batch


class ClockMessage:
    """Messages between the clock and the components. An empty text carries the tick, since spaCy's loop copies everything else of
    an Example."""

    KEY = "spacy_crf_tick"  # in the user_data of the reference

    def __init__(self) -> None:
        # By component that took a step: whether another step can still improve it
        self.goes_on: dict[str, bool] = {}

    def example(self, like: Example) -> Example:
        """An Example that carries the tick, with the vocabulary of another Example."""
        return Example(Doc(like.reference.vocab), Doc(like.reference.vocab, user_data={self.KEY: self}))

    @classmethod
    def of(cls, example: Example) -> "Optional[ClockMessage]":
        """The tick of an example, or None."""
        return None if len(example.reference) else example.reference.user_data.get(cls.KEY)


def clock() -> Callable[[Iterable[Example]], Iterable[list[Example]]]:
    """Batcher that puts all texts into the first batch; each later batch only signals another step on the same texts, until no
    component can improve any more (``spacy_crf.clock.v1``). From a stream, which components read at their initialization, it
    reads the first example only, and yields it again and again."""

    def tick(examples: Iterable[Example]) -> Iterable[list[Example]]:
        without_collection_at_exit()
        # spaCy gives a list of all texts, except for streams
        if not isinstance(examples, list):
            first = list(islice(examples, 1))
            close = getattr(examples, "close", None)
            if close is not None:
                close()  # spaCy's loop keeps the generator, which keeps its file open
            while first:
                yield first
        elif examples:
            message = ClockMessage()
            tick_example = message.example(examples[0])
            with not_searched():
                yield [*examples, tick_example]
                # Components answer in `goes_on`; before the first answer, another step may help
                while not message.goes_on or any(message.goes_on.values()):
                    yield [tick_example]

    return tick


_YOUNG = 1  # generation of objects that survived at most one collection


@contextmanager
def not_searched() -> Iterator[None]:
    """Within the context, the garbage collector skips all objects that existed at its start; it searches newer ones as usual."""
    if gc.get_freeze_count():  # another context has frozen the objects, and will release them
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@cache
def without_collection_at_exit() -> None:
    """When the process ends, leave its memory to the system, which frees it at once, instead of letting Python search it and take
    cycles apart object by object: that took a seventh of the time of a small training. Objects outside of cycles, such as files,
    are still closed."""
    atexit.register(_leave)


def _leave() -> None:
    gc.collect(_YOUNG)
    gc.freeze()


# ------------------------------------------------------------------------------------------------ where texts come from
#
# The place in a file, and the id that the file gives the text. Both are ``doc._.crf_source``, a part of the user data of the Doc.

SOURCE = "crf_source"
KEY: Any = ("._.", SOURCE, None, None)  # of the extension in the user data, whose type spaCy declares as str


def set_origin(doc: Doc, place: str, id_: object = None) -> None:
    """Set where the text of a Doc comes from.

    place (str): The place in a file.
    id_ (object): Its id; anything but a whole number or a string is no id.
    """
    origin: dict[str, object] = {"place": _encodable(place)}
    if type(id_) is int:
        origin["id"] = id_ if abs(id_) < 2**63 else str(id_)
    elif isinstance(id_, str) and id_:
        origin["id"] = _encodable(id_)
    doc.user_data[KEY] = origin


def origin_of(doc: Doc) -> dict[str, object]:
    """RETURNS (Dict[str, object]): The "place" of the text of a Doc, and its "id" if it has one; empty if neither is known."""
    found = doc.user_data.get(KEY)
    return {key: found[key] for key in ("place", "id") if key in found} if isinstance(found, dict) else {}


def named_origin(doc: Doc) -> str:
    """The place and the id of the text of a Doc in words; empty if neither is known."""
    return in_words(origin_of(doc))


def in_words(origin: dict[str, object]) -> str:
    """Say in words where a text comes from: its place and its id, as far as `origin_of` has them."""
    parts = [str(origin["place"])] if "place" in origin else []
    if "id" in origin:
        parts.append(f"id {origin['id']}")
    return ", ".join(parts)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 can't encode; texts from JSON and names of files may have them."""
    return text.encode("utf8", "replace").decode("utf8")


# ---------------------------------------------------------------------------------------------------------- files of Docs

_NIL = b"\xc0"  # None in MessagePack
_ARRAY = b"\xdd"  # before the number of elements, in four bytes


def docs_in(stored: DocBin, vocab: Vocab) -> Iterator[Doc]:
    """Yield the Docs of a DocBin (`stored`), with the places that `doc_bin` has stored. The user data is taken out of `stored`.

    Decodes the user data of all Docs at once: spaCy decodes the user data of each Doc, which takes ten times as long as the rest
    of a sentence.
    """
    packed = [_NIL if data is None else data for data in stored.user_data]
    stored.user_data = []
    user_data: Any = ()  # of each Doc
    if any(data != _NIL for data in packed):
        # One array in MessagePack, whose elements are packed already
        array = b"".join((_ARRAY, len(packed).to_bytes(4, "big"), *packed))
        user_data = srsly.msgpack_loads(array, use_list=False)
    # `user_data` is shorter if no Doc has any
    for doc, data, flags in zip_longest(stored.get_docs(vocab), user_data, stored.flags):
        doc.user_data.update(data or {})
        if SOURCE in flags:
            doc.user_data[KEY] = flags[SOURCE]
        yield doc


def doc_bin(docs: Iterable[Doc], **settings: Any) -> DocBin:
    """Put Docs into a DocBin, which stores user data only for Docs that have some, encoded by a single packer.

    **settings: Arguments of `DocBin`.

    Where texts come from is in its flags, which only `docs_in` reads: user data would take spaCy's readers ten times as long as
    the rest of a sentence.
    """
    stored = DocBin(**settings)
    packer = Packer(use_bin_type=True)
    for doc in docs:
        stored.add(doc)
        user_data = {key: value for key, value in doc.user_data.items() if key != KEY}
        stored.user_data.append(packer.pack(user_data) if user_data else None)
        if KEY in doc.user_data:
            stored.flags[-1][SOURCE] = doc.user_data[KEY]
    stored.store_user_data = True
    return stored


def why_empty(name: str, nlp: Optional[Language], has_own: bool) -> str:
    """Why a corpus has no texts.

    name (str): The component.
    nlp (Optional[Language]): Its pipeline, whose config names the corpus.
    has_own (bool): Whether the corpus is [initialize.components.NAME.corpus].
    """
    config = {} if nlp is None else nlp.config.interpolate()
    section = config.get("training", {}).get("train_corpus") or ""
    if has_own:
        section = f"initialize.components.{name}.corpus"
    block = config
    for key in section.split("."):
        block = block.get(key) if isinstance(block, dict) else None
    path = block.get("path") if isinstance(block, dict) else None
    if not path:
        return "get_examples gave none"
    path = Path(path)
    if not path.exists():
        why = "does not exist"
    elif path.is_dir():
        why = "is a folder without .spacy files, or with empty ones"
    elif path.suffix != ".spacy":
        why = f"is no .spacy file. `python -m spacy crf convert {path} {path.with_suffix('.spacy')}` makes one of it"
    else:
        why = "holds no texts, or none that limit and max_length let through"
    return f"[{section}] path = {path} {why}"
