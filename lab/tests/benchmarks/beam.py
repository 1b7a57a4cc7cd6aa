"""What beam search gains and loses: CPU time of decoding the chain and of all of `nlp.pipe`, F1, and how often the best labelling
is found."""

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Optional

import numpy as np
import spacy
import typer
from spacy.language import Language

from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.types import ChainScores
from spacy_crf_lab.beam import Beam, within
from tests.benchmarks.data import Sentence, iob2_tags, make_doc, make_examples, read_sentences
from tests.benchmarks.measure import entity_f1, show, side_by_side

BEAMS = [Beam(4), Beam(8), Beam(12), Beam(8, 10.0), Beam(8, 8.0)]
COLUMNS = ["decode", "ns a token", "times viterbi", "tokens/s, nlp.pipe", "best found", "F1"]


def main(
    corpus: str = "german_ler",
    every: Annotated[int, typer.Option(help="Which part of the sentences is learned from: every n-th.")] = 3,
    limit: Annotated[int, typer.Option(help="Sentences that are decoded.")] = 3000,
    model: Annotated[Optional[Path], typer.Option(help="A trained pipeline, in place of training one.")] = None,
    name: Annotated[str, typer.Option(help="Its component.")] = "crf_ner",
) -> None:
    sentences = read_sentences(corpus, "test", limit=limit)
    nlp = _trained(corpus, every) if model is None else spacy.load(model)
    _show_entities(nlp, name, sentences)
    _show_dense(321)


def _trained(corpus: str, every: int) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"optimizer": None})
    examples = make_examples(nlp.vocab, read_sentences(corpus, "train")[::every])
    optimizer = LBFGS(l2=0.05, iterations_per_step=60)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return nlp


def _show_entities(nlp: Language, name: str, sentences: list[Sentence]) -> None:
    pipe = nlp.get_pipe(name)
    scores = pipe.model.predict([make_doc(nlp.vocab, sentence) for sentence in sentences])
    found, seconds = [], []
    for beam in (None, *BEAMS):
        pipe.decoder = beam
        docs = [make_doc(nlp.vocab, sentence) for sentence in sentences]
        start = time.process_time()
        found.append([iob2_tags(doc) for doc in nlp.pipe(docs)])
        seconds.append(time.process_time() - start)
    f1 = [entity_f1([sentence.tags for sentence in sentences], tags) for tags in found]
    n_tokens = len(scores[0])
    piped = [f"{n_tokens / s:,.0f}" for s in seconds]
    show(f"{len(pipe.tags())} tags", COLUMNS, _rows(scores, [f"{each:.2f}" for each in f1], piped))


def _show_dense(n_tags: int) -> None:
    """Where every tag may follow every other one."""
    rng, shape = np.random.default_rng(0), (20_000, n_tags)
    emissions, transitions = 2.0 * rng.normal(size=shape), rng.normal(size=(n_tags, n_tags))
    ends, nothing = np.zeros((2, n_tags)), [""] * (1 + len(BEAMS))
    scores = ChainScores(emissions, transitions, *ends, np.arange(0, shape[0] + 1, 20))
    show(f"{n_tags} tags at random", COLUMNS, _rows(scores, nothing, nothing))


def _rows(scores: ChainScores, f1: list[str], piped: list[str]) -> list[tuple[str, ...]]:
    exact = LinearChain()
    work = exact.prepare(scores)
    best = exact.viterbi(work).scores
    structures = [exact, *(within(exact, beam) for beam in BEAMS)]
    seconds = side_by_side(*(partial(each.viterbi, work) for each in structures), repeats=7, clock=time.process_time)
    names = ["viterbi", *map(str, BEAMS)]
    return [
        (
            name,
            f"{1e9 * of_beam / work.n_tokens:,.0f}",
            f"{seconds[0] / of_beam:.2f}",
            speed,
            f"{(structure.viterbi(work).scores >= best).mean():.2%}",
            right,
        )
        for name, structure, of_beam, speed, right in zip(names, structures, seconds, piped, f1)
    ]


if __name__ == "__main__":
    typer.run(main)
