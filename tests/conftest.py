"""Fixtures of several files. They import what they need: the process that gives tests to others needs no spaCy."""

import logging
import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A .spacy file with entities, spans, tags and labels of texts."""
    from tests.util import write_corpus

    return write_corpus(tmp_path_factory.mktemp("corpus") / "tiny.spacy")


@pytest.fixture
def paths(tmp_path):
    """Settings of a config: a .spacy file with entities for each part."""
    import spacy
    from spacy.tokens import DocBin

    from tests.util import NER_TEXTS, ner_doc

    nlp = spacy.blank("en")
    files = {f"paths.{part}": str(tmp_path / f"{part}.spacy") for part in ("train", "dev")}
    for file in files.values():
        DocBin(docs=[ner_doc(nlp, text) for text in NER_TEXTS]).to_disk(file)
    return files


@pytest.fixture(scope="session")
def tagged_paths(tmp_path_factory):
    """Paths of tagged texts; the training part has each text twice. The session shares the files: do not change them."""
    import spacy
    from spacy.tokens import DocBin

    from tests.util import NER_TEXTS, ner_doc

    nlp = spacy.blank("en")
    folder = tmp_path_factory.mktemp("tagged")
    for part, texts in (("train", NER_TEXTS * 2), ("dev", NER_TEXTS)):
        docs = [ner_doc(nlp, text) for text in texts]
        for doc in docs:
            for token in doc:
                token.tag_ = "NNP" if token.ent_type else "X"
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
    return {f"paths.{part}": str(folder / f"{part}.spacy") for part in ("train", "dev")}


@pytest.fixture
def people(tmp_path):
    """A file of clusters."""
    from tests.util import PEOPLE

    path = tmp_path / "people.txt"
    path.write_text(PEOPLE, encoding="utf8")
    return path


@pytest.fixture(scope="session")
def warm_environment():
    """Variables for scripts whose `python` is warm."""
    from tests.warm_python import warm_python

    with warm_python() as path:
        yield {**os.environ, "PATH": path}


@pytest.fixture(scope="session")
def few_texts(tmp_path_factory):
    """The folder `assets` with some of the texts: pages say what commands do, not how good a model is."""
    folder = tmp_path_factory.mktemp("few") / "assets"
    shutil.copytree(Path(__file__).parents[1] / "assets", folder)
    for path in folder.rglob("*.jsonl"):
        lines = path.read_text(encoding="utf8").splitlines(keepends=True)
        path.write_text("".join(lines[:: max(1, len(lines) // 60)]), encoding="utf8")
    return folder


@pytest.fixture
def quiet(caplog):
    """No warnings of Docs that contradict themselves."""
    caplog.set_level(logging.ERROR, logger="spacy.spacy_crf")
