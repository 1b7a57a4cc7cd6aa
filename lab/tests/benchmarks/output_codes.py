"""Error-correcting output codes for many labels: ``python -m lab.tests.benchmarks.output_codes``

UD English EWT has 321 labels of UPOS and FEATS. What a pass over its training data costs beside the exact chain and the pruned
one, how fast the product of the bits is decoded within a beam, and how many labels of the test data are right by each kind of
decoding. Codes without chains are those of scikit-learn's OutputCodeClassifier.
"""

import time
from resource import RUSAGE_SELF, getrusage
from typing import Annotated, Any

import numpy as np
import spacy
import typer

from spacy_crf.optimizers.lbfgs import LBFGS
from tests.benchmarks.higher_order import _labels_first, _seconds, read, tag
from tests.benchmarks.measure import show
from tests.benchmarks.rivals import strong_features

CODES = {"@architectures": "spacy_crf_lab.OutputCodes.v1"}
MODELS: dict[str, dict[str, Any]] = {
    "exact": {"@architectures": "spacy_crf.LinearChain.v1"},
    "pruned": {"@architectures": "spacy_crf.HigherOrder.v1", "order": 1, "keep": 4.0},
    "40 bits": CODES,
    "40 bits, cascade": {**CODES, "cascade": True},
    "80 bits": {**CODES, "bits": 80},
    "bounded": {**CODES, "codes": "bounded"},
    "parts": {**CODES, "codes": "parts"},
    "parts, cascade": {**CODES, "codes": "parts", "cascade": True},
}
DECODE = ("product", "marginals", "hamming")


def main(
    only: Annotated[str, typer.Option(help="Models, between semicolons; sklearn is one too.")] = ";".join(MODELS),
    share: Annotated[float, typer.Option(help="Of the sentences of training, first those that show all labels.")] = 1.0,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS; the exact chain has passes only.")] = 60,
    beam: int = 8,
) -> None:
    """CPU seconds of a pass, tokens/s of `nlp.pipe`, and accuracy by decoding, one line after each model."""
    header = ["model", "labels", "bits", "tokens", "pass s", "exact / pass", "train s", "tokens/s", *DECODE, "peak MB"]
    nlp, exact = spacy.blank("en"), None
    train, test = (list(read(nlp, part)) for part in ("train", "test"))
    train = _labels_first(train)[: int(share * len(train))]
    for name in only.split(";"):
        if name == "sklearn":
            row = sklearn(train, test)
        else:
            row = ours(MODELS[name], train, test, 0 if name == "exact" else iterations, beam)
            exact = row[3] if name == "exact" else exact
            row.insert(4, exact and exact / row[3])
        peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
        show("UD English EWT, UPOS and FEATS", header, [[name, *row, peak]])


def ours(model: dict[str, Any], train: list, test: list, iterations: int, beam: int) -> list[Any]:
    nlp = spacy.blank("en")
    features = {"@misc": "spacy_crf.tagger_features.v1"}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "min_count": 2, "features": features}
    within = {} if "keep" in model else {"decoder": {"@misc": "spacy_crf_lab.beam.v1", "width": beam}}
    config = {"attribute": "pos+morph", "model": {**model, "emissions": emissions}, **within}
    pipe = nlp.add_pipe("crf_tagger", config=config)
    optimizer = LBFGS(l2=0.1, iterations_per_step=5, memory=5)
    nlp.initialize(lambda: train, sgd=optimizer)
    objective = pipe.training.objective(optimizer, train)
    begin = time.process_time()
    while iterations and (
        (run := optimizer._runs.get("it")) is None or (run.iteration < iterations and not run.stop_reason)
    ):
        optimizer.step(objective, key="it")
    trained, weights = time.process_time() - begin if iterations else None, objective.weights()
    objective.evaluate(weights)
    seconds = float(np.median([_seconds(lambda: objective.evaluate(weights)) for _ in range(3)]))
    pipe.clear_scores()
    node, matrix = pipe.model.attrs["node"], pipe.model.attrs.get("matrix")
    speed, right = None, [None] * len(DECODE)
    for place, decode in enumerate(DECODE if matrix is not None else DECODE[:1]):
        node.decode, node._latest = decode, None
        if iterations:
            found, right[place] = tag(nlp, test)
            speed = speed or found
    n_tokens = sum(len(example.reference) for example in train)
    return [len(pipe.labels), None if matrix is None else matrix.shape[1], n_tokens, seconds, trained, speed, *right]


def sklearn(train: list, test: list) -> list[Any]:
    """Each bit by a linear classifier, without transitions."""
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import SGDClassifier
    from sklearn.multiclass import OutputCodeClassifier

    def rows(examples: list) -> tuple[Any, list[str]]:
        docs = [example.reference for example in examples]
        features = FeatureHasher(1 << 18, input_type="string").transform(
            row for doc in docs for row in strong_features(doc)
        )
        return features, [f"{token.pos_}|{token.morph}" for doc in docs for token in doc]

    features, labels = rows(train)
    n_labels, begin = len(set(labels)), time.process_time()
    bits = SGDClassifier(loss="log_loss", alpha=1e-5, random_state=0)
    model = OutputCodeClassifier(bits, code_size=40 / n_labels, random_state=0).fit(features, labels)
    trained, (features, gold) = time.process_time() - begin, rows(test)
    begin = time.process_time()
    right = float(np.mean(model.predict(features) == np.array(gold)))
    speed = len(gold) / (time.process_time() - begin)
    return [n_labels, model.code_book_.shape[1], len(labels), None, None, trained, speed, None, right, None]


if __name__ == "__main__":
    typer.run(main)
