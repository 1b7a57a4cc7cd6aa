"""Which functions of the package one Doc meets on its way through a component: ``python -m tests.doc_walk``."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import spacy
from numba.core.dispatcher import Dispatcher
from spacy.language import Language

import spacy_crf
from tests.util import ner_examples, plain

_PACKAGE = str(Path(spacy_crf.__file__).parent)
RULES = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "PER", "n": 5}]}
SETTINGS = {"plain": {}, "with confidence and a rule": {"confidence": True, "constraints": RULES}}


class Walk(NamedTuple):
    """The functions that were called, in order, each as (file, name)."""

    calls: list[tuple[str, str]]

    @property
    def functions(self) -> int:
        return len(self.calls)

    @property
    def stays(self) -> int:
        """Maximal runs of calls in one file."""
        files = [file for file, _ in self.calls]
        return sum(file != before for before, file in zip([None, *files], files))

    @property
    def returns(self) -> int:
        """Stays in a file that was left before."""
        return self.stays - len({file for file, _ in self.calls})


def walk_of(call: Callable[[], object]) -> Walk:
    """The Python functions of the package that a call calls. Compiled kernels don't count, nor do comprehensions."""
    calls: list[tuple[str, str]] = []
    frames = set()  # a generator that goes on is no other call

    def note(frame, event, argument):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PACKAGE) or code.co_name.startswith("<"):
            return
        file = code.co_filename[len(_PACKAGE) + 1 :]
        module = sys.modules.get(f"spacy_crf.{file.removesuffix('.py').replace('/', '.')}")
        if not isinstance(getattr(module, code.co_name, None), Dispatcher) and frame not in frames:
            frames.add(frame)
            calls.append((file, code.co_name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Walk(calls)


def walk_of_doc(nlp: Language) -> Walk:
    """Of one Doc through `nlp.pipe`, warm."""
    docs = [plain(example.reference) for example in ner_examples(nlp)]
    for doc in docs:
        nlp(doc.copy())
    return walk_of(lambda: list(nlp.pipe([docs[0]])))


def component(name: str) -> Language:
    """A pipeline with an initialized `crf_ner` of some of the `SETTINGS`."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config=SETTINGS[name])
    nlp.initialize(lambda: ner_examples(nlp))
    return nlp


def main() -> None:
    for name in SETTINGS:
        walk = walk_of_doc(component(name))
        for file, function in walk.calls:
            print(f"  {file:40} {function}")
        print(f"{name}: {walk.functions} functions, {walk.stays} stays, {walk.returns} returns to a file")


if __name__ == "__main__":
    main()
