"""One ``crf_tagger`` for several attributes beside one for each: ``python -m tests.benchmarks.attributes``

English web texts (UD EWT): accuracy after the same iterations of L-BFGS, a pass over the training data, and prediction.
"""

import time
from collections.abc import Callable
from typing import Annotated, Any

import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.converters import conllu_to_docs

from spacy_crf.optimizers.lbfgs import LBFGS

from .data import data_folder
from .measure import show, side_by_side


def main(
    attributes: Annotated[str, typer.Option(help="Between commas.")] = "tag,pos",
    train: Annotated[int, typer.Option(help="Sentences to learn from.")] = 12544,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS.")] = 60,
    repeats: Annotated[int, typer.Option(help="Turns, where speed is measured.")] = 5,
) -> None:
    """Accuracy, and seconds for reading features, a pass over them, and prediction."""
    names = attributes.split(",")
    nlps = {"apart": blank(names), "together": blank([names])}
    tasks: list[list[Callable[[], Any]]] = []
    accuracies = []
    for nlp in nlps.values():
        learn, test = examples_of(nlp, "train")[:train], examples_of(nlp, "test")
        begin = time.process_time()
        nlp.initialize(lambda learn=learn: learn)
        objectives = [pipe.training.objective(LBFGS(), learn) for _, pipe in nlp.pipeline]
        reading = time.process_time() - begin
        for (name, pipe), objective in zip(nlp.pipeline, objectives):
            LBFGS(l2=0.1, max_iterations=iterations, iterations_per_step=1_000_000).step(objective, key=name)
            pipe.clear_scores()
        scores = nlp.evaluate(test)
        accuracies.append([*(100 * scores[f"{attribute}_acc"] for attribute in names), reading])
        tasks.append([passing(objectives), predicting(nlp, test, new=True), predicting(nlp, test, new=False)])
    columns = [side_by_side(*task, repeats=repeats, clock=time.process_time) for task in zip(*tasks)]
    rows = [[name, *scored, *seconds] for name, scored, *seconds in zip(nlps, accuracies, *columns)]
    header = ["taggers", *names, "reading", "pass", "new words", "known words"]
    show(f"UD EWT, {train} sentences; seconds of CPU", header, rows)


def passing(objectives: list[Any]) -> Callable[[], Any]:
    pairs = [(objective, objective.weights()) for objective in objectives]
    return lambda: [objective.evaluate(weights) for objective, weights in pairs]


def blank(attributes: list[Any]) -> Language:
    nlp = spacy.blank("en")
    for n, attribute in enumerate(attributes):
        nlp.add_pipe("crf_tagger", name=f"tagger_{n}", config={"attribute": attribute})
    return nlp


def examples_of(nlp: Language, part: str) -> list[Example]:
    text = (data_folder() / "ud_ewt_docs" / f"{part}.conllu").read_text(encoding="utf8")
    docs = list(conllu_to_docs(text, no_print=True))
    return [
        Example(Doc(nlp.vocab, words=[token.text for token in doc]), Doc(nlp.vocab).from_bytes(doc.to_bytes()))
        for doc in docs
    ]


def predicting(nlp: Language, examples: list[Example], *, new: bool) -> Callable[[], Any]:
    """Predict texts whose words are new to the components, or known to them."""
    words = [[token.text for token in example.reference] for example in examples]

    def predict() -> None:
        for _, pipe in nlp.pipeline:
            if new:
                pipe.clear_scores()
        list(nlp.pipe(Doc(nlp.vocab, words=of_doc) for of_doc in words))

    return predict


if __name__ == "__main__":
    typer.run(main)
