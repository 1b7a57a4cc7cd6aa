"""Measure claims of the literature about CRFs and their rivals: ``python -m lab.tests.benchmarks.claims``.

Each function is a claim: its docstring says who claims what, and it returns what was found. Where another benchmark has the
measurement, the function takes it from there.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.perceptron import AveragedPerceptron, BatchPerceptron
from tests.benchmarks.data import Sentence, iob2_tags, make_doc, make_examples, read_sentences
from tests.benchmarks.document import SETS, plain, read
from tests.benchmarks.measure import entity_f1, machine
from tests.benchmarks.ours import EXAMPLE_MODEL, WORDS_IN_A_ROW_OF_ENTITIES, make_pipeline, n_weights, train

from ..util import registered
from .graphs import TRAININGS

NAME = "conll2000"
PERCEPTRON = {"@losses": "spacy_crf.Perceptron.v1"}
CLAIMS: dict[str, Callable[["Texts"], str]] = {}


class Texts(NamedTuple):
    train: list[Sentence]
    test: list[Sentence]


def main(
    sentences: Annotated[int, typer.Option(help="Training sentences of conll2000; 0 for all.")] = 0,
    only: Annotated[str, typer.Option(help="Names of claims, between commas.")] = "",
) -> None:
    texts = Texts(read_sentences(NAME, "train", limit=sentences or None), read_sentences(NAME, "test"))
    print("| claim | measured here |\n| --- | --- |")
    for name in only.split(",") if only else CLAIMS:
        start = time.process_time()
        found = CLAIMS[name](texts)
        print(f"| {' '.join(CLAIMS[name].__doc__.split())} | {found} |", flush=True)
        print(f"{name}: {time.process_time() - start:.0f} CPU s", flush=True, file=typer.get_text_stream("stderr"))
    print(f"\n{machine()}")


def claim(function: Callable[[Texts], str]) -> Callable[[Texts], str]:
    CLAIMS[function.__name__] = function
    return function


@claim
def scaling_is_slow(texts: Texts) -> str:
    """Iterative scaling converges slowly, conjugate gradients faster, L-BFGS fastest (Gupta 2006; Essid; Malouf 2002)"""
    from .classic_optimizers import NEAR, to_the_minimum

    rows = to_the_minimum(limit=min(len(texts.train), 1000))
    told = [
        f"{name} {evaluations} ({seconds:.1f} s)" if above <= NEAR else f"{name} more than {evaluations}"
        for name, evaluations, _, seconds, above in rows
    ]
    return f"evaluations (CPU seconds) to within {NEAR:g} of the minimum: {', '.join(told)}"


@claim
def gradients_beside_smo(texts: Texts) -> str:
    """Exponentiated gradients reach a better objective than SMO, and stall less (Gupta 2006, after Bartlett et al. 2004)"""
    from .classic_optimizers import GAPS, to_the_gaps

    rows = to_the_gaps(limit=min(len(texts.train), 1000))
    told = []
    for name, *found, gap, _ in rows:
        passes = [f"{n} ({seconds:.1f} s)" if n else "–" for n, seconds in zip(found[::2], found[1::2])]
        told.append(f"{name} {', '.join(passes)}" + ("" if gap <= GAPS[-1] else f", {gap:.1e} at the end"))
    return f"passes (CPU seconds) to a gap of {', '.join(f'{gap:g}' for gap in GAPS)}: {'; '.join(told)}"


@claim
def perceptron_passes(texts: Texts) -> str:
    """The averaged and the "voted" perceptron need fewer passes than the plain one (Collins 2002; Gupta 2006)"""
    passes = (1, 2, 3, 5, 10, 20)
    curves = {
        "plain": AveragedPerceptron(use_averages=False),
        "averaged": AveragedPerceptron(),
        "mean updates of whole passes": BatchPerceptron(),
    }
    found = []
    for name, optimizer in curves.items():
        scores = dict(enumerate(by_pass(optimizer, texts, passes[-1]), 1))
        found.append(f"{name} {', '.join(f'{scores[n]:.2f}' for n in passes)}")
    return f"F1 after {', '.join(map(str, passes))} passes: {'; '.join(found)}"


@claim
def perceptron_order(texts: Texts) -> str:
    """The order of the sentences changes the weights of a perceptron (Brefeld), but not the optimum of a CRF"""
    few = Texts(texts.train[:1000], texts.test)
    found = []
    for name, averages in (("plain", False), ("averaged", True)):
        scores = [
            list(by_pass(AveragedPerceptron(use_averages=averages, seed=seed), few, 10))[-1] for seed in range(10)
        ]
        found.append(f"{name} {min(scores):.2f} to {max(scores):.2f} (deviation {statistics.stdev(scores):.2f})")
    nlp, orders = make_pipeline("crf_ner", {"model": EXAMPLE_MODEL}), []
    for seed in range(3):
        shuffled = [few.train[n] for n in np.random.default_rng(seed).permutation(len(few.train))]
        nlp = make_pipeline("crf_ner", {"model": EXAMPLE_MODEL})
        train(nlp, make_examples(nlp.vocab, shuffled), l2=0.1, delta=1e-7)
        orders.append(f1(nlp, few.test))
    return (
        f"F1 from 1,000 sentences, 10 passes in ten orders: {'; '.join(found)}; L-BFGS in three orders "
        f"{min(orders):.2f} to {max(orders):.2f}"
    )


@claim
def few_features(texts: Texts) -> str:
    """With l1, up to 95 % of the features can be discarded without affecting performance (Essid)"""
    found = []
    for l1 in (0.0, 0.1, 0.3, 1.0, 2.0, 4.0):
        nlp = make_pipeline("crf_ner", {"model": EXAMPLE_MODEL})
        train(nlp, make_examples(nlp.vocab, texts.train), l1=l1, l2=0.05 if l1 else 0.5, delta=1e-4, max_iterations=200)
        nodes = nlp.get_pipe("crf_ner").model.walk()
        used = sum(np.count_nonzero(node.get_param(name)) for node in nodes for name in node.param_names)
        found.append(f"{100 * used / n_weights(nlp):.1f} %: {f1(nlp, texts.test):.2f}")
    return f"F1 by the share of the weights that are not zero: {', '.join(found)}"


@claim
def label_bias(texts: Texts) -> str:
    """A MEMM falls behind a CRF for its label bias (Lafferty, McCallum & Pereira 2001; Bottou 1991)"""
    found = []
    for name in ("MaxEnt", "MEMM", "LinearChain"):
        model = {"@architectures": registered(name), "emissions": EXAMPLE_MODEL["emissions"]}
        if name == "LinearChain":
            model["possible_transitions"] = False
        else:
            model["emissions"] = {"@architectures": "spacy_crf.SparseEmissions.v1", **model["emissions"]}
        nlp = make_pipeline("crf_ner", {"model": model})
        train(nlp, make_examples(nlp.vocab, texts.train), l2=0.5, delta=1e-4, max_iterations=200)
        found.append(f"{name} {f1(nlp, texts.test):.2f}")
    return f"F1 of chunks: {', '.join(found)}"


@claim
def beliefs(texts: Texts) -> str:
    """Loopy belief propagation comes close to the true marginals (Sutton & McCallum; Gupta 2006)"""
    found = []
    for width, docs in (("next", 100), ("all", 100)):
        pipes = [tied(width, method) for method in ("BeliefPropagation", "JunctionTree")]
        documents = short_documents(pipes[0].vocab, docs)
        examples = [Example(plain(doc), doc) for doc in documents[: docs // 2]]
        optimizer = LBFGS(iterations_per_step=40, l2=0.1)
        for nlp in pipes:
            nlp.initialize(lambda examples=examples: examples, sgd=optimizer)
        pipes[0].update(examples, sgd=optimizer)
        pipes[1].get_pipe("crf_ner").from_bytes(pipes[0].get_pipe("crf_ner").to_bytes(), exclude=["cfg"])
        found.append(f"ties {width}: {_compared(pipes, documents[docs // 2 :])}")
    return "; ".join(found)


def tied(edges: str, method: str) -> Language:
    """A pipeline whose model ties equal words to each other, and sums by a method."""
    features = {"@misc": "spacy_crf.ner_features.v1", "without": WORDS_IN_A_ROW_OF_ENTITIES}
    model = {
        "@architectures": "spacy_crf_lab.FactorGraph.v1",
        "cliques": {"repeats": {"@misc": "spacy_crf_lab.RepeatedWords.v1", "edges": edges}},
        "emissions": {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features},
        "inference": {"@misc": registered(method)},
        "possible_transitions": True,
    }
    return make_pipeline("crf_ner", {"model": model, "scheme": "IO", **TRAININGS["sentences"]})


def short_documents(vocab: Vocab, n: int, sentences: int = 8) -> list[Doc]:
    """The beginnings of court decisions, short enough for exact sums."""
    chosen = SETS["german_ler_docs"]
    part = chosen.parts["train"]._replace(documents=n)
    nlp = Language(vocab)
    whole = read("german_ler_docs", chosen._replace(parts={"train": part}), "train", nlp)
    return [doc[: list(doc.sents)[min(sentences, len(list(doc.sents))) - 1].end].as_doc() for doc in whole]


def _compared(pipes: Sequence[Language], documents: Sequence[Doc]) -> str:
    approximate, exact = (nlp.get_pipe("crf_ner") for nlp in pipes)
    differences, largest, changed, tokens, kept = [], 0.0, 0, 0, 0
    for doc in map(plain, documents):
        try:
            true = exact.marginals(doc)[0]
        except ValueError:  # a table would be too large
            continue
        near, kept = approximate.marginals(doc)[0], kept + 1
        differences.append(float(np.abs(near - true).sum(axis=1).mean() / 2))
        largest = max(largest, float(np.abs(near - true).max()))
        changed, tokens = changed + int((near.argmax(axis=1) != true.argmax(axis=1)).sum()), tokens + len(doc)
    return (
        f"{kept} documents of {len(documents)} have exact sums; mean distance {statistics.mean(differences):.5f} "
        f"(total variation), largest difference {largest:.3f}, another most probable label for {changed} of {tokens:,} tokens"
    )


@claim
def hidden_states(texts: Texts) -> str:
    """A CRF with hidden states labels sequences at least as well as an SVM (Essid: 76 % and 75 % of musical instruments)"""
    from sklearn.svm import LinearSVC

    from tests.benchmarks import textcat

    train_items, test_items = textcat.read("train")[::4], textcat.read("test")
    hidden = textcat.ours({"@architectures": registered("HiddenChain")}, train_items, test_items, 40).accuracy
    vectors = textcat.scikit_learn(train_items, test_items, LinearSVC()).accuracy
    return f"intents of snips, a quarter of the training texts: HiddenChain {hidden:.2f} %, linear SVM {vectors:.2f} %"


@claim
def linked_labels(texts: Texts) -> str:
    """Texts that link to each other are labelled better together (Taskar, Abbeel & Koller 2002; Gupta 2006)"""
    from .linked_texts import ALONE, LINKED, judge

    found = []
    for homophily in (0.6, 0.8, 0.95):
        alone, together = (judge(model, texts=500, homophily=homophily).accuracy for model in (ALONE, LINKED))
        found.append(f"{100 * homophily:.0f} %: {alone:.1f}, {together:.1f}")
    return f"accuracy alone and together, by the share of links that lead to the same label: {'; '.join(found)}"


@claim
def few_expansions(texts: Texts) -> str:
    """Expansions of labels by cuts need few rounds (Boykov, Veksler & Zabih 2001; Gupta 2006)"""
    from .cuts import rounds

    counts = rounds()
    return f"graphs by rounds: {', '.join(f'{n}: {counts[n]}' for n in sorted(counts))}"


def by_pass(optimizer: Any, texts: Texts, passes: int) -> Iterator[float]:
    """F1 on test after each pass of an online optimizer, with its averages if it has some."""
    nlp = make_pipeline("crf_ner", {"model": EXAMPLE_MODEL, "loss": PERCEPTRON})
    examples = make_examples(nlp.vocab, texts.train)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(passes):
        nlp.update(examples, sgd=optimizer)
        with nlp.use_params(optimizer.averages or {}):
            yield f1(nlp, texts.test)


def f1(nlp: Language, sentences: Sequence[Sentence]) -> float:
    docs = nlp.pipe(make_doc(nlp.vocab, sentence) for sentence in sentences)
    return entity_f1([sentence.tags for sentence in sentences], [iob2_tags(doc) for doc in docs])


if __name__ == "__main__":
    typer.run(main)
