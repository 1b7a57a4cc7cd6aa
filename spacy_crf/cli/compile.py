"""Compiling ahead: when an image is built, in CI, before the first users come."""

import io
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Optional

import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from wasabi import msg

from ..pipeline.doc_bin import doc_bin
from .group import app
from .init_config import FOLDER, ComponentName
from .shared import quietly, told_briefly

# Words that begin with capitals are names: all annotation is made of that
_TEXTS = [
    "Ann Lee lives in New York City .",
    "Bob left Paris for Acme Foods .",
    "nobody was there",
    "Acme Foods hired Ann Lee , Bob and 12 others on Monday .",
    "In New York it rains .",
    "yes",
]


@app.command("compile")
def compile_cli(
    components: Annotated[Optional[list[ComponentName]], typer.Argument(help="By default all of ours.")] = None,
) -> None:
    """Compile ahead what components need. Each is trained with its config of `init-config` on a few words, saved, loaded and
    asked, so that no training with this config and no prediction of its model has to compile anything. Kernels that are there
    already are not compiled again."""
    from ..kernels import cache_folder
    from ..kernels.announcing import announcer

    with told_briefly():
        for component in [chosen.value for chosen in components or ComponentName]:
            before, started = announcer.compiled, time.perf_counter()
            _use(component)
            compiled, seconds = announcer.compiled - before, time.perf_counter() - started
            if compiled:
                msg.good(f"{component}: {compiled} kernels compiled in {seconds:.0f} s")
            else:
                msg.good(f"{component}: everything is compiled already")
        msg.info(f"Kept in {cache_folder(__file__).parent}")


def _use(component: str) -> None:
    """Trains a component with its config, and predicts with what was saved."""
    with TemporaryDirectory() as folder, quietly():
        path = Path(folder, "texts.spacy")
        _write_corpus(path)
        config = load_config(FOLDER / f"{component}.cfg", overrides={"paths.train": str(path), "paths.dev": str(path)})
        train(init_nlp(config), Path(folder), stdout=io.StringIO(), stderr=io.StringIO())
        nlp = spacy.load(Path(folder, "model-best"))
        list(nlp.pipe(_TEXTS))


def _write_corpus(path: Path) -> None:
    nlp = spacy.blank("en")
    doc_bin(_annotated(nlp, text.split()) for text in _TEXTS).to_disk(path)


def _annotated(nlp: Language, words: list[str]) -> Doc:
    """A Doc with what any of the components learns from: entities, tags, and labels of the text."""
    named = [word[0].isupper() for word in words]
    ents = ["O" if not now else "I-NAME" if before else "B-NAME" for before, now in zip([False, *named], named)]
    doc = Doc(nlp.vocab, words=words, tags=["NAME" if is_name else "WORD" for is_name in named], ents=ents)
    doc.cats = {"NAMES": float(any(named)), "NONE": float(not any(named))}
    return doc
