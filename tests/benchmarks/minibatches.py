"""The usual loop and the usual config, beside spaCy's `ner`: ``python -m tests.benchmarks.minibatches``.

They want nothing but the example corpus of news. The loop is that of spaCy's documentation: `nlp.initialize()`, then `nlp.update`
on minibatches. The config is what `spacy init config` writes, trained as `spacy train` does it.
"""

import logging
import random
import tempfile
from pathlib import Path

import spacy
from rich.console import Console
from rich.table import Table
from spacy.cli.init_config import init_config
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_evaluation_callback, create_train_batches, train_while_improving
from spacy.util import fix_random_seed, minibatch, registry
from typer.testing import CliRunner

from spacy_crf.cli import app

NEWS = Path(__file__).parents[2] / "assets" / "news"
COMPONENTS = ("ner", "crf_ner", "semicrf_ner")
EPOCHS = 5


def convert(folder: Path) -> None:
    """The example corpus as .spacy files."""
    CliRunner().invoke(app, ["convert", str(NEWS), "-o", str(folder)], catch_exceptions=False)


def usual_loop(component: str, corpus: Path, *, batch_size: int = 8, epochs: int = EPOCHS) -> list[float]:
    """F of the dev set after each epoch."""
    fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe(component)
    examples = _read(nlp, corpus / "train.spacy")
    optimizer = nlp.initialize(lambda: examples)
    found = []
    for epoch in range(epochs):
        random.Random(epoch).shuffle(examples)
        for batch in minibatch(examples, batch_size):
            nlp.update(batch, sgd=optimizer)
        found.append(nlp.evaluate(_read(nlp, corpus / "dev.spacy"))["ents_f"])
    return found


def usual_config(component: str, corpus: Path, *, epochs: int = EPOCHS) -> list[float]:
    """F of the dev set at the end of each epoch."""
    config = init_config(lang="en", pipeline=[component], optimize="efficiency", silent=True)
    config["paths"].update(train=str(corpus / "train.spacy"), dev=str(corpus / "dev.spacy"))
    nlp = init_nlp(config)
    settings = registry.resolve(nlp.config.interpolate()["training"], schema=None, validate=False)
    corpora = registry.resolve(nlp.config.interpolate()["corpora"], validate=False)
    batches = create_train_batches(nlp, corpora["train"], settings["batcher"], epochs)
    evaluate = create_evaluation_callback(nlp, corpora["dev"], settings["score_weights"])
    steps = train_while_improving(
        nlp,
        settings["optimizer"],
        batches,
        evaluate=evaluate,
        dropout=settings["dropout"],
        eval_frequency=10,
        accumulate_gradient=1,
        patience=0,
        max_steps=0,
        exclude=[],
        annotating_components=[],
        before_update=None,
    )
    scores = {info["epoch"]: info["score"] for _, info, _ in steps if info["score"] is not None}
    return [scores[epoch] for epoch in sorted(scores)]


def _read(nlp: spacy.language.Language, path: Path) -> list[Example]:
    return [Example(nlp.make_doc(doc.text), doc) for doc in DocBin().from_disk(path).get_docs(nlp.vocab)]


def main() -> None:
    logging.getLogger("spacy").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder)
        convert(corpus)
        table = Table("component", "how", *(f"F, epoch {n}" for n in range(1, EPOCHS + 1)))
        for component in COMPONENTS:
            rows = {f"loop, batches of {size}": usual_loop(component, corpus, batch_size=size) for size in (2, 8, 32)}
            rows["init config, train"] = usual_config(component, corpus)
            for how, found in rows.items():
                table.add_row(component, how, *(f"{f:.3f}" for f in found))
    Console().print(table)


if __name__ == "__main__":
    main()
