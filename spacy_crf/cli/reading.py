"""Annotated texts for commands: any file that `convert` reads, and what `spacy train` reads."""

import re
from pathlib import Path
from typing import Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Corpus, Example
from spacy.training.corpus import walk_corpus

from ..errors import Errors
from .formats import Report, Settings, Source, brat, check_doc, read

_OPTION = re.compile(r"--[a-z]")


def read_docs(
    path: Path, nlp: Language, settings: Optional[Settings] = None, *, report: Optional[Report] = None
) -> list[Doc]:
    """The annotated Docs of a file.

    nlp (Language): Its tokenizer is used for texts.
    settings (Settings): What the file is and which of it counts; by default its contents tell.
    report (Report): Told what was read and what could not be used.
    RETURNS (List[Doc])
    RAISES (ValueError): With file and line, if one can't be read; if there are no texts, or no annotation.
    """
    settings = settings or Settings()
    try:
        return list(read(Source(path, settings.encoding), nlp, settings, report or Report()))
    except ValueError as error:
        if _OPTION.search(str(error)) is None:
            raise
        raise ValueError(Errors.CRF879.format(error=error)) from None


def read_examples(path: Path, nlp: Language, *, tell: bool = True) -> list[Example]:
    """Examples of a .spacy file, of a folder of them, or of a file that `read_docs` reads.

    tell (bool): Whether to print what could not be used.
    RAISES (ValueError): If there are none.
    """
    corpus = Corpus(path)
    if brat.is_collection(path) or (path.suffix != ".spacy" and not path.is_dir()):
        report = Report()
        examples = list(corpus.make_examples(nlp, read_docs(path, nlp, report=report)))
        if tell:
            report.tell()
        return examples
    try:
        docs = list(corpus.read_docbin(nlp.vocab, walk_corpus(path, ".spacy")))
    except OSError:
        raise
    except Exception as error:  # whatever zlib and msgpack raise
        raise ValueError(Errors.CRF717.format(path=path, reason=error)) from None
    for number, doc in enumerate(docs, start=1):
        check_doc(doc, nlp, f"{path}, document {number}")
    examples = list(corpus.make_examples(nlp, docs))
    if not examples:
        raise ValueError(Errors.CRF708.format(path=path))
    return examples
