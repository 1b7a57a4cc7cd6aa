"""The public data sets: CoNLL files to sentences, spaCy Docs, Examples and .spacy files."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Optional

import spacy
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.vocab import Vocab

from spacy_crf.cli.formats import ReadSettings
from spacy_crf.cli.texts import read_docs

ROOT = Path(__file__).parents[2]


class DataSet(NamedTuple):
    """Which file plays which part, and what the last column holds: entities in IOB2, or one tag per token."""

    train: str = "train"
    dev: Optional[str] = "dev"
    test: str = "test"
    entities: bool = True


SETS = {
    "wnut17": DataSet(),
    "usaddress": DataSet("heldout_train", "heldout_dev", "heldout_test"),
    "cora_refs": DataSet(dev=None),
    "mit_restaurant": DataSet(),
    "snips_cased": DataSet(dev=None),
    "conll2000": DataSet(dev=None),
    "ud_ewt_xpos": DataSet(entities=False),
    "ingredients_ip": DataSet(),
    "jnlpba": DataSet(),
    "german_ler": DataSet(),
    "germeval14": DataSet(),
    "wikigold": DataSet(),
    "spacy_address": DataSet(),
    "presidio_synth": DataSet(),
    "crossner_ai": DataSet(),
    "crossner_music": DataSet(),
    "crossner_politics": DataSet(),
}


class Sentence(NamedTuple):
    words: list[str]
    pos: Optional[list[str]]  # only conll2000 has a part-of-speech column
    tags: list[str]


def data_folder() -> Path:
    folder = Path(os.environ.get("SPACY_CRF_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        raise SystemExit(
            f"The benchmark data is not at {folder}. It is not part of the repository: set the environment variable "
            "SPACY_CRF_DATA to a folder with files NAME/SPLIT.conll (word, tab, tag; an empty line after each sentence) and "
            "plain/*.txt."
        )
    return folder


def read_sentences(name: str, part: str, *, limit: Optional[int] = None) -> list[Sentence]:
    """One part of one data set.

    name (str): A key of SETS.
    part (str): "train", "dev" or "test".
    limit (Optional[int]): At most so many sentences, from the start of the file.
    RETURNS (list[Sentence]): The sentences, in the order of the file; none if the set has no such part.
    """
    split = getattr(SETS[name], part)
    if split is None:
        return []
    path = data_folder() / name / f"{split}.conll"
    texts = path.with_suffix(".jsonl")  # with spans, to be cut into words
    if texts.is_file() and not path.is_file():
        docs = read_docs(texts, spacy.blank("en"), ReadSettings(overlaps="longest"))[:limit]
        return [Sentence([token.text for token in doc], None, iob2_tags(doc)) for doc in docs if len(doc)]
    if not path.is_file():
        raise SystemExit(f"The benchmark data has no file {path}.")
    with path.open(encoding="utf8") as lines:
        return list(islice(parse_conll(lines), limit))


def write_training_text(name: str, folder: Path) -> Path:
    """The words of the training data, between spaces, a sentence a line: raw text for what learns from it."""
    path = folder / f"{name}.txt"
    path.write_text("\n".join(" ".join(sentence.words) for sentence in read_sentences(name, "train")), encoding="utf8")
    return path


def parse_conll(lines: Iterable[str]) -> Iterator[Sentence]:
    """Sentences from columns between tabs: first the word, last the tag, and in between, if anything, a part of speech."""
    rows: list[list[str]] = []
    for line in [*lines, ""]:
        line = line.rstrip("\n")
        if line:
            rows.append(line.split("\t"))
        elif rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            yield Sentence(columns[0], columns[1] if len(columns) > 2 else None, columns[-1])
            rows = []


def read_texts(file_name: str, limit: int) -> list[str]:
    """The first lines of ``plain/FILE_NAME``, one document each."""
    with (data_folder() / "plain" / file_name).open(encoding="utf8") as lines:
        return [line.rstrip("\n") for line in islice(lines, limit)]


def make_doc(vocab: Vocab, sentence: Sentence) -> Doc:
    """What a component may see: a Doc with exactly these words, tagged with parts of speech where the set has them."""
    return Doc(vocab, words=sentence.words, tags=sentence.pos)


def make_gold_doc(vocab: Vocab, sentence: Sentence, *, entities: bool = True) -> Doc:
    """The same Doc with the last column in ``doc.ents``, or in ``token.tag_``."""
    if entities:
        return Doc(vocab, words=sentence.words, tags=sentence.pos, ents=sentence.tags)
    return Doc(vocab, words=sentence.words, tags=sentence.tags)


def make_examples(vocab: Vocab, sentences: Iterable[Sentence], *, entities: bool = True) -> list[Example]:
    return [Example(make_doc(vocab, s), make_gold_doc(vocab, s, entities=entities)) for s in sentences]


def save_docbin(path: Path, sentences: Iterable[Sentence], *, entities: bool = True) -> None:
    """The gold Docs as a .spacy file for ``spacy train``."""
    vocab = Vocab()
    DocBin(docs=(make_gold_doc(vocab, s, entities=entities) for s in sentences)).to_disk(path)


def iob2_tags(doc: Doc) -> list[str]:
    """The entities of a Doc as IOB2 strings: the way back from ``make_gold_doc``."""
    return [f"{token.ent_iob_}-{token.ent_type_}" if token.ent_type_ else "O" for token in doc]
