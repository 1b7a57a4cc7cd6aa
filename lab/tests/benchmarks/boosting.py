"""Boosted trees beside weights of the same features: ``python -m lab.tests.benchmarks.boosting``

Single attributes as features (atoms) of words and parts of speech. L-BFGS is shown with its best l2, trees after the rounds that
are asked for. LightGBM takes part where it is installed (`pip install lightgbm`), with its own trees for every label and without
transitions. CPU seconds, which the load of a machine changes less.
"""

import time
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import spacy
import typer

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.tree_boost import TreeBoost
from tests.benchmarks.data import make_doc, make_examples, read_sentences
from tests.benchmarks.measure import entity_f1, show, side_by_side

from ..util import registered

ATOMS = {
    "lower": ["bias", *(f"lower[{n}]" for n in range(-2, 3))],
    "tag": [f"tag[{n}]" for n in range(-2, 3)],
    "shape": [f"shape[{n}]" for n in range(-1, 2)],
}
WITH_TAGS = ("conll2000",)
HEADER = ["", "setting", "F1, test", "training (s)", "s/round", "tokens/s"]


def main(
    sets: Annotated[str, typer.Option(help="Between commas.")] = "conll2000",
    sentences: Annotated[int, typer.Option(help="Of the training data.")] = 1000,
    rounds: Annotated[str, typer.Option(help="Trees after which F1 is measured, between commas.")] = "50,100,200",
    strengths: Annotated[str, typer.Option(help="l2 of L-BFGS, between commas.")] = "0.1,0.3,1",
    leaves: Annotated[int, typer.Option(help="Of a tree.")] = 64,
    shrinkage: Annotated[float, typer.Option(help="Factor of each tree.")] = 0.2,
    only: Annotated[str, typer.Option(help="Some of lbfgs, trees, lightgbm.")] = "lbfgs,trees,lightgbm",
) -> None:
    """F1 of entities, time of training, and tokens that prediction labels in a second."""
    for name in sets.split(","):
        templates = ATOMS["lower"] + ATOMS["tag" if name in WITH_TAGS else "shape"]
        features = {"@misc": "spacy_crf.features.v1", "templates": templates}
        train, test = read_sentences(name, "train", limit=sentences), read_sentences(name, "test")
        rows: list[list[Any]] = []
        if "lbfgs" in only:
            rows += _with_weights(features, train, test, [float(l2) for l2 in strengths.split(",")])
        if "trees" in only:
            growth = {"leaves": leaves, "shrinkage": shrinkage}
            rows += _with_trees(features, train, test, [int(n) for n in rounds.split(",")], growth)
        if "lightgbm" in only and find_spec("lightgbm"):
            rows.append(_lightgbm(features, train, test, int(rounds.split(",")[-1])))
        n_tokens = sum(len(sentence.words) for sentence in train)
        show(f"{name}: {len(train):,} sentences, {n_tokens:,} tokens", HEADER, rows)


def _made(emissions: str, features: dict[str, Any], train: Any) -> tuple[Any, Any, Any]:
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy_crf.LinearChain.v1"}
    model["emissions"] = {"@architectures": registered(emissions), "features": features}
    pipe = nlp.add_pipe("crf_ner", config={"model": model, "scheme": "BIO"})
    examples = make_examples(nlp.vocab, train)
    nlp.initialize(lambda: examples)
    return nlp, pipe, examples


def _tested(nlp: Any, pipe: Any, test: Any) -> tuple[float, float]:
    """F1, and tokens per second of CPU time."""
    examples = make_examples(nlp.vocab, test)
    score = 100 * nlp.evaluate(examples)["ents_f"]
    docs = [example.predicted for example in examples]
    batches = [docs[n : n + 256] for n in range(0, len(docs), 256)]
    [seconds] = side_by_side(lambda: [pipe.predict(batch) for batch in batches], repeats=3, clock=time.process_time)
    return score, sum(map(len, docs)) / seconds


def _with_weights(features: dict[str, Any], train: Any, test: Any, strengths: list[float]) -> list[list[Any]]:
    nlp, pipe, examples = _made("SparseEmissions", features, train)
    found = []
    for l2 in strengths:
        pipe.training.begin()
        begin = time.process_time()
        nlp.update(examples, sgd=LBFGS(l2=l2, iterations_per_step=200, max_iterations=200))
        seconds = time.process_time() - begin
        score, speed = _tested(nlp, pipe, test)
        found.append(["L-BFGS", f"l2 = {l2:g}", score, seconds, "", f"{speed:,.0f}"])
    return found


def _with_trees(
    features: dict[str, Any], train: Any, test: Any, rounds: list[int], growth: dict[str, Any]
) -> list[list[Any]]:
    nlp, pipe, examples = _made("BoostedEmissions", features, train)
    found, done, seconds = [], 0, 0.0
    for asked in rounds:
        begin = time.process_time()
        nlp.update(examples, sgd=TreeBoost(rounds_per_step=asked - done, seed=done, **growth))
        seconds, done = seconds + time.process_time() - begin, asked
        score, speed = _tested(nlp, pipe, test)
        found.append(["trees", f"{asked} rounds", score, seconds, seconds / asked, f"{speed:,.0f}"])
        print(*found[-1], sep="\t", flush=True)
    return found


def _lightgbm(features: dict[str, Any], train: Any, test: Any, rounds: int) -> list[Any]:
    """Independent tokens: one tree for each label and round, on the same features as a sparse matrix."""
    import lightgbm
    from scipy.sparse import csr_matrix

    nlp, pipe, _ = _made("BoostedEmissions", features, train)
    boosted, tags = pipe.model.get_ref("emissions").attrs["boosted"], pipe.tags()

    def matrix(sentences: Any) -> Any:
        by_template, _ = boosted.rows_of([make_doc(nlp.vocab, sentence) for sentence in sentences], boosted.index)
        template, token = np.nonzero(by_template >= 0)
        ones, shape = np.ones(len(token), np.float32), (by_template.shape[1], len(boosted.index))
        return csr_matrix((ones, (token, by_template[template, token])), shape)

    labels = np.array([tags.index(tag) for sentence in train for tag in sentence.tags])
    begin = time.process_time()
    data = lightgbm.Dataset(matrix(train), labels, params={"verbose": -1, "min_data_in_leaf": 2})
    settings = {
        "objective": "multiclass",
        "num_class": len(tags),
        "num_leaves": 16,
        "learning_rate": 0.2,
        "verbose": -1,
    }
    model = lightgbm.train({**settings, "min_data_in_leaf": 2, "num_threads": 1}, data, rounds)
    seconds, columns = time.process_time() - begin, matrix(test)
    begin = time.process_time()
    found: Any = model.predict(columns)
    speed = columns.shape[0] / (time.process_time() - begin)
    best = iter([tags[n] for n in found.argmax(axis=1)])
    gold = [sentence.tags for sentence in test]
    by_sentence = [[next(best) for _ in tags_of] for tags_of in gold]
    return [
        "LightGBM",
        f"{rounds} rounds",
        100 * entity_f1(gold, by_sentence),
        seconds,
        seconds / rounds,
        f"{speed:,.0f}",
    ]


if __name__ == "__main__":
    typer.run(main)
