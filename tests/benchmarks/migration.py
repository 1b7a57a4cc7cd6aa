"""The model of the package usaddress as a pipeline, beside the package itself: ``python -m tests.benchmarks.migration``.

All addresses of the benchmark data, cut into words by the package. CPU seconds, from the words to the labels: the package makes
features and asks CRFsuite, the pipeline makes the same features by the same function.
"""

import os
import time
from itertools import islice
from pathlib import Path

os.environ.setdefault("SPACY_CRF_THREADS", "1")

import typer
import usaddress
from spacy.tokens import Doc

from spacy_crf.cli.migrate import make_pipeline, read_model
from spacy_crf.migrate.checking import scorer_of

from .data import data_folder, parse_conll
from .measure import show

MODEL = Path(usaddress.__file__).with_name("usaddr.crfsuite")


def main(limit: int = typer.Option(None, help="Addresses; all by default.")) -> None:
    """Compare labels and time."""
    texts = {}
    for path in sorted((data_folder() / "usaddress").glob("*.conll")):
        with path.open(encoding="utf8") as lines:
            texts.update(dict.fromkeys(" ".join(sentence.words) for sentence in parse_conll(lines)))
    words = [usaddress.tokenize(text) for text in islice(texts, limit)]
    model = read_model(MODEL.read_bytes(), str(MODEL), "crfsuite")
    nlp = make_pipeline(model, ["orth"], "usaddress:tokens2features")
    nlp(Doc(nlp.vocab, words=words[0]))  # compiles, or reads what was compiled
    docs = [Doc(nlp.vocab, words=of_text) for of_text in words]

    start = time.process_time()
    ours = [[token.tag_ for token in doc] for doc in nlp.pipe(docs)]
    middle = time.process_time()
    theirs = [usaddress.TAGGER.tag(usaddress.tokens2features(of_text)) for of_text in words]
    end = time.process_time()
    for of_text in words:
        usaddress.tokens2features(of_text)
    features = time.process_time() - end
    score, ties, different = scorer_of(model), 0, 0
    for of_text, a, b in zip(words, ours, theirs):
        if a != b:
            rows = usaddress.tokens2features(of_text)
            is_tie = abs(score(rows, None, a) - score(rows, None, b)) < 1e-5
            ties, different = ties + is_tie, different + (not is_tie)
    rows = [
        ("addresses", len(words), "", ""),
        ("with other labels (ties apart)", different, "0", ""),
        ("ties", ties, "", ""),
        ("CPU seconds: pipeline", middle - start, "", ""),
        ("CPU seconds: package", end - middle, "", ""),
        ("of these the function that makes features", features, "", ""),
        ("times as fast", (end - middle) / (middle - start), "≥ 3", "the function alone allows no more than "),
    ]
    rows[-1] = (*rows[-1][:3], f"with the same function at most {(end - middle) / features:.2f}")
    show("usaddress", ("", "measured", "must", ""), rows)


if __name__ == "__main__":
    typer.run(main)
