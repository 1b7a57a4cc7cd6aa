"""A corpus whose predicted Docs keep the tags of the file, for ``spacy train --code``: as if a tagger ran before."""

from collections.abc import Callable, Iterator
from pathlib import Path

from spacy import registry
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example


@registry.readers("tests.benchmarks.tagged_corpus")
def make_tagged_corpus(path: Path) -> Callable[[Language], Iterator[Example]]:
    def read(nlp: Language) -> Iterator[Example]:
        for gold in DocBin().from_disk(path).get_docs(nlp.vocab):
            words, tags = [token.text for token in gold], [token.tag_ for token in gold]
            yield Example(Doc(nlp.vocab, words=words, tags=tags), gold)

    return read
