"""Where training data comes from, for messages about data that is not there."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Optional

from spacy.language import Language
from spacy.training import Example

from ..errors import Errors


def at_least_one(
    get_examples: Callable[[], Iterable[Example]], name: str, nlp: Optional[Language], *, has_own: bool
) -> Callable[[], Iterator[Example]]:
    """The same examples, whose end is an error if there was none.

    name (str): The component that reads them.
    nlp (Language): Its pipeline, whose config tells where they come from.
    has_own (bool): Whether they are those of [initialize.components.NAME.corpus].
    """

    def read() -> Iterator[Example]:
        example = None
        for example in get_examples():
            yield example
        if example is None:
            raise ValueError(Errors.CRF712.format(name=name, reason=_why_empty(name, nlp, has_own)))

    return read


def are_made_up(examples: Iterable[Example]) -> bool:
    """Whether they are what `nlp.initialize` makes up where it is given none: a single text without annotation."""
    return [[token.text for token in example.reference] for example in examples] == [["x", "y", "z"]]


def _why_empty(name: str, nlp: Optional[Language], has_own: bool) -> str:
    section, path = _source(name, nlp, has_own)
    if path is None:
        return "get_examples gave none"
    if not path.exists():
        why = "does not exist"
    elif path.is_dir():
        why = "is a folder without .spacy files, or with empty ones"
    elif path.suffix != ".spacy":
        why = f"is no .spacy file. `python -m spacy crf convert {path} {path.with_suffix('.spacy')}` makes one of it"
    else:
        why = "holds no texts, or none that limit and max_length let through"
    return f"[{section}] path = {path} {why}"


def _source(name: str, nlp: Optional[Language], has_own: bool) -> tuple[str, Optional[Path]]:
    """The section of the config that names the corpus, and its path, if it has one."""
    if nlp is None:
        return "", None
    config = nlp.config.interpolate()
    section = config["training"].get("train_corpus") or ""
    if has_own:
        section = f"initialize.components.{name}.corpus"
    block = config
    for key in section.split("."):
        block = block.get(key) if isinstance(block, dict) else None
    path = block.get("path") if isinstance(block, dict) else None
    return section, Path(path) if path else None
