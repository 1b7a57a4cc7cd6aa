"""Small annotated corpora, built where they are needed."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example, biluo_tags_to_spans

if TYPE_CHECKING:
    from hypothesis import settings

# [words](LABEL)
_MARKUP = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")

NER_TEXTS = [
    "[Ann Lee](PER) lives in [New York](GPE) .",
    "[Bob](PER) left [Paris](GPE) for [Acme Corp](ORG) .",
    "Nobody was there .",
    "[Acme Corp](ORG) hired [Ann Lee](PER) and [Bob](PER) .",
    "In [New York](GPE) it rains .",
    "[Carla Diaz](PER) runs [Blue Sky Ltd](ORG) from [Rome](GPE) .",
]
TAG_TEXTS = [
    "the/DT dog/NN barks/VB",
    "a/DT cat/NN sleeps/VB",
    "dogs/NN bark/VB loudly/RB",
    "the/DT old/JJ cat/NN runs/VB",
]
# A file of clusters: paths, words and counts
PEOPLE = "00\tbob\t9\n00\tZoe\t8\n010\tRome\t7\n010\tParis\t6\n010\tOslo\t5\n011\tquebec\t4\n1\t.\t3\n"


def draws(count: int) -> "settings":
    """How many examples hypothesis draws: so many, and in a hunt (``pytest --hunt N``) N times as many."""
    from hypothesis import settings  # which programs that tests start need not import

    return settings(max_examples=count * settings.default.max_examples // 100)


def ner_doc(nlp: Language, text: str) -> Doc:
    """A Doc with the entities marked as ``[words](LABEL)``, tokenized at spaces."""
    words, tags = [], []
    at = 0
    for match in [*_MARKUP.finditer(text), None]:
        plain = text[at : match.start() if match else len(text)].split()
        words += plain
        tags += ["O"] * len(plain)
        if match:
            inside = match[1].split()
            words += inside
            tags += (
                [f"U-{match[2]}"]
                if len(inside) == 1
                else [f"B-{match[2]}", *[f"I-{match[2]}"] * (len(inside) - 2), f"L-{match[2]}"]
            )
            at = match.end()
    doc = Doc(nlp.vocab, words=words)
    doc.set_ents(biluo_tags_to_spans(doc, tags), default="outside")
    return doc


def ner_examples(nlp: Language, texts: list[str] = NER_TEXTS) -> list[Example]:
    return [_example(nlp, ner_doc(nlp, text)) for text in texts]


def tag_examples(nlp: Language, texts: list[str] = TAG_TEXTS, attribute: str = "tag_") -> list[Example]:
    examples = []
    for text in texts:
        words, tags = zip(*(item.split("/") for item in text.split()))
        doc = Doc(nlp.vocab, words=list(words))
        for token, tag in zip(doc, tags):
            setattr(token, attribute, tag)
        examples.append(_example(nlp, doc))
    return examples


def _example(nlp: Language, reference: Doc) -> Example:
    return Example(Doc(nlp.vocab, words=[token.text for token in reference]), reference)


def write_corpus(path: Path, copies: int = 1) -> Path:
    """Texts with entities, spans, tags, morphology, labels of texts, and one sentence each."""
    nlp = spacy.blank("en")
    docs = [ner_doc(nlp, text) for text in NER_TEXTS * copies]
    for doc in docs:
        doc.spans["sc"] = list(doc.ents)
        doc.cats = {"NAMES": float(len(doc.ents) > 1), "OTHER": float(len(doc.ents) <= 1)}
        for token in doc:
            token.tag_ = "NNP" if token.ent_type else "PUNCT" if token.is_punct else "X"
            token.pos_ = "PROPN" if token.ent_type else "PUNCT" if token.is_punct else "X"
            token.set_morph("Number=Sing" if token.ent_type else None)
            token.is_sent_start = token.i == 0
    DocBin(docs=docs, store_user_data=True).to_disk(path)
    return path


def plain(doc: Doc) -> Doc:
    """The same words without annotation."""
    return Doc(doc.vocab, words=[token.text for token in doc])


def entities(doc: Doc) -> list[tuple[int, int, str]]:
    return [(ent.start, ent.end, ent.label_) for ent in doc.ents]


def set_constraints(pipe, constraints):
    """constraints: In place of those that a component has, or None."""
    pipe.constraints = constraints
    pipe._labels_changed()  # rules are compiled anew


def signatures(kernels) -> dict[str, int]:
    """For how many types each kernel of a module was compiled. Helpers are a part of their callers, and not compiled where these
    come from the cache."""
    declared = {name: kernel for name, kernel in vars(kernels).items() if hasattr(kernel, "signatures")}
    return {
        name: len(kernel.signatures)
        for name, kernel in declared.items()
        if not kernel.targetoptions.get("no_cpython_wrapper")
    }


def check_copies(nlp, factory, examples, others, folder, rtol=0.0, atol=0.0):
    """Copies of a pipeline, by disk and by bytes, and two threads find what the pipeline finds, with its probabilities.

    factory: The component that is asked for probabilities. others: Pipelines that become copies by bytes.
    RETURNS: The last copy.
    """
    docs = [plain(example.reference) for example in examples] + [Doc(nlp.vocab), Doc(nlp.vocab, words=["Bob"])]

    def found(doc):
        return [*entities(doc), *(token.tag_ for token in doc)]

    before = [found(nlp(plain(doc))) for doc in docs]
    nlp.to_disk(folder)
    for copied in (spacy.load(folder), *(other.from_bytes(nlp.to_bytes()) for other in others)):
        assert [found(doc) for doc in copied.pipe(map(plain, docs))] == before
        for doc in docs:
            theirs, ours = (of.get_pipe(factory).marginals(doc)[0] for of in (copied, nlp))
            np.testing.assert_allclose(theirs, ours, rtol=rtol, atol=atol)
    with ThreadPoolExecutor(2) as threads:
        assert [found(doc) for doc in threads.map(nlp, map(plain, docs))] == before
    return copied


def check_leave_out(pipe, doc, span):
    """A row of one feature says by how much the log-odds fall when the weights of the feature are set to 0."""
    whole = pipe.explain(doc, span, kind="leave_out")
    rows = [row for row in whole.rows if "=" in row.feature]
    assert {*pipe.tags()} >= {tag for row in rows for tag in row.tags}
    checked = 0
    for row in rows:
        if [other.feature for other in rows].count(row.feature) > 1:
            continue
        changed = []
        for layer in pipe.model.layers:
            if "features" in layer.attrs:
                table, weights = layer.attrs["features"].states, layer.get_param("states")
                names = np.array([table.index.name(n) for n in range(len(table.index))])[table.rows_of_pairs()]
                layer.set_param("states", np.where(names == row.feature, np.float32(0.0), weights))
                changed.append((layer, weights))
        pipe.clear_scores()
        without = pipe.explain(doc, span, kind="leave_out").target
        assert row.contribution == pytest.approx(whole.target - without, abs=1e-6), row
        for layer, weights in changed:
            layer.set_param("states", weights)
        pipe.clear_scores()
        checked += 1
    assert checked > 2
