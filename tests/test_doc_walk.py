"""How many functions and files somebody meets who follows one Doc through `crf_ner`."""

import pytest
import spacy
from spacy.training import Example

from tests.doc_walk import component, walk_of, walk_of_doc
from tests.test_package import PACKAGE
from tests.test_size import n_statements

# Functions, stays in a file, returns to one that was left. Two functions ask whether Docs have white space, at which no span
# begins or ends, and introduce the labels to a vocabulary that would forget them behind a memory zone. A decoding brings the
# class of its batches, and a decoder of another package may answer in its place. Arrays of thinc are read in one place, with
# their type. Eight functions that numba compiled, which nobody counted, are NumPy now. Two properties of transitions are computed
# at each of three calls, since cached ones take a lock, which is slow for short texts
MOST = {"plain": (89, 52, 28), "with confidence and a rule": (132, 85, 53)}


@pytest.mark.parametrize("settings", MOST)
def test_the_way_of_a_doc_gets_no_longer(settings):
    walk = walk_of_doc(component(settings))
    assert all(found <= most for found, most in zip((walk.functions, walk.stays, walk.returns), MOST[settings]))


def test_whoever_reads_what_crf_ner_runs_reads_few_files(tmp_path):
    """Prediction, training and saving, above the models. The bounds may fall."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    annotated = [
        ("Ann Lee lives in New York.", [(0, 7, "PER"), (17, 25, "GPE")]),
        ("Bob left Paris.", [(0, 3, "PER"), (9, 14, "GPE")]),
    ]
    examples = [Example.from_dict(nlp.make_doc(text), {"entities": entities}) for text, entities in annotated]

    def run():
        optimizer = nlp.initialize(lambda: examples)
        for _ in range(3):
            nlp.update(examples, sgd=optimizer)
        nlp.to_disk(tmp_path)
        loaded = spacy.load(tmp_path)
        list(loaded.pipe(["Ann in Rome", "Bob in Paris"]))
        loaded.evaluate(examples)

    files = {file for file, _ in walk_of(run).calls if file.split("/")[0] in ("pipeline", "explain", "cli")}
    statements = sum(n_statements((PACKAGE / file).read_text(encoding="utf8")) for file in files)
    assert len(files) <= 8
    assert statements <= 2_194
