"""Labels of equal texts that fit together, after a tagger: ``python -m lab.tests.benchmarks.smoothing``

Court decisions, as in `graphs`: the tagger alone, and followed by ``crf_smooth`` with several rewards. The best one on dev
is chosen; a reward of almost 0 shows what the scores gain by themselves.
"""

import random
import time
from typing import Annotated, Any

import spacy
import typer
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import fix_random_seed, minibatch

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.smoothing import Smoothing
from tests.benchmarks.document import SETS, plain, read
from tests.benchmarks.measure import show
from tests.benchmarks.ours import WORDS_IN_A_ROW_OF_ENTITIES, make_pipeline

from .graphs import NAME

STRENGTHS = (1e-6, 0.3, 0.6, 1.0, 1.5)
SCORES = {"crf_ner": ("labels", "probabilities"), "ner": ("labels", "beam")}


def main(
    factories: Annotated[str, typer.Option(help="Between commas, of crf_ner and spaCy's ner.")] = "crf_ner,ner",
    epochs: Annotated[int, typer.Option(help="Of spaCy's ner.")] = 12,
) -> None:
    """F1 of entities on dev and test, before the step and after it."""
    rows = []
    for factory in factories.split(","):
        nlp, gold = _trained(factory, epochs)
        docs = {part: list(nlp.pipe(map(plain, gold[part]))) for part in ("dev", "test")}
        rows.append([factory, "", "", *(_f1(docs[part], gold[part]) for part in docs), ""])
        step: Any = nlp.add_pipe(
            "crf_smooth", config={"component": factory, "smoothing": {"@misc": "spacy_crf_lab.smooth.v1"}}
        )
        for scores in SCORES[factory]:
            for strength in STRENGTHS:
                price = 2.0 if scores == "labels" else 5.0
                step.smoothing = Smoothing(scores=scores, price=price, strength=strength)
                start = time.process_time()
                found = {part: list(step.pipe(doc.copy() for doc in docs[part])) for part in docs}
                seconds = time.process_time() - start
                rows.append(
                    [factory, scores, f"{strength:g}", *(_f1(found[part], gold[part]) for part in docs), seconds]
                )
                print(*rows[-1], sep="\t", flush=True)
    show("crf_smooth", ["tagger", "scores", "strength", "dev", "test", "CPU s"], rows, note=NAME)


def _trained(factory: str, epochs: int) -> tuple[Language, dict[str, list[Doc]]]:
    """A pipeline with one component, and the annotated Docs."""
    chosen = SETS[NAME]
    if factory == "crf_ner":
        features = {"@misc": "spacy_crf.ner_features.v1", "without": WORDS_IN_A_ROW_OF_ENTITIES}
        nlp = make_pipeline(factory, {"model": {"emissions": {"features": features}}, **chosen.settings})
    else:
        fix_random_seed(0)
        nlp = spacy.blank("de")
        nlp.add_pipe(factory)
    gold = {part: read(NAME, chosen, part, nlp) for part in chosen.parts}
    if factory == "crf_ner":
        examples = [Example(plain(doc), doc) for doc in gold["train"]]
        optimizer = LBFGS(iterations_per_step=60, l2=chosen.l2, delta=5e-4)
        nlp.initialize(lambda: examples, sgd=optimizer)
        nlp.update(examples, sgd=optimizer)
        return nlp, gold
    sentences = [sentence.as_doc() for doc in gold["train"] for sentence in doc.sents]
    examples = [Example(plain(doc), doc) for doc in sentences]
    adam = nlp.initialize(lambda: examples)
    for _ in range(epochs):
        random.shuffle(examples)
        for batch in minibatch(examples, 64):
            nlp.update(batch, sgd=adam, drop=0.2)
    return nlp, gold


def _f1(docs: list[Doc], gold: list[Doc]) -> float:
    examples = [Example(doc, annotated) for doc, annotated in zip(docs, gold)]
    return 100.0 * Scorer.score_spans(examples, "ents", getter=lambda doc, _: doc.ents)["ents_f"]


if __name__ == "__main__":
    typer.run(main)
