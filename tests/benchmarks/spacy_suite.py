"""The tests that come with spaCy, with our components in place of its ``ner`` and ``spancat``:
``python -m tests.benchmarks.spacy_suite``.

Once for each kind of emissions. Configs stay those of the tests: what they set of the transition system is passed over, and a
listener stays one. Bounds of the loss are of what a parser says: the sum of the squared derivatives. Ends with 1 if a test fails
that has no reason in `REASONS`, or passes that has one.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Optional
from unittest import mock

import pytest
import spacy
import typer
from rich.console import Console
from rich.table import Table
from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.util import Config, registry
from thinc.api import Model

from spacy_crf.pipeline.prediction import CRFEntityRecognizer, CRFPipe

SUITE = Path(spacy.__file__).parent / "tests"
SELECTED = ("parser/test_ner.py", "pipeline", "serialize", "training")
EMISSIONS = ("counted", "hashed", "tok2vec")

# Why tests fail, by their names: each asks for something that only a transition system, or a suggester with logits, has
REASONS = {
    "parser/test_ner.py::test_accept_blocked_token": "asks the states of the transition system which moves are valid",
    "parser/test_ner.py::test_beam_ner_scores": "asks the beam for its scores; ours are span_probabilities",
    "parser/test_ner.py::test_beam_overfitting_IO": "asks the beam for its scores; ours are span_probabilities",
    "parser/test_ner.py::test_issue1967[U-JOB-NAME]": "asks for the moves of the transition system",
    "parser/test_ner.py::test_issue2179": "resizes the parser's output layer by its number of moves",
    "parser/test_ner.py::test_issue3209": "asks for the names of the moves",
    "parser/test_ner.py::test_issue4313": "calls beam_parse",
    "parser/test_ner.py::test_labels_from_BILUO": "asks for the names of the moves",
    "parser/test_ner.py::test_overwrite_token": "asks the states of the transition system which moves are valid",
    "pipeline/test_spancat.py::test_implicit_labels[spancat]": "asks for labels in the order of the texts; ours are sorted",
    "pipeline/test_spancat.py::test_make_spangroup_multilabel": "asks how logits of candidates become spans",
    "pipeline/test_spancat.py::test_make_spangroup_negative_label": "asks how logits of candidates become spans",
    "pipeline/test_spancat.py::test_make_spangroup_singlelabel": "asks how logits of candidates become spans",
    "pipeline/test_spancat.py::test_no_label[spancat]": "a component without labels finds nothing here, until it learns some",
    "pipeline/test_spancat.py::test_no_resize[spancat]": "asks for the number of logits, which can't change there",
    "pipeline/test_spancat.py::test_overfitting_IO": "asks for the number of logits",
    "pipeline/test_spancat.py::test_overfitting_IO_overlapping": "asks for the number of logits",
    "pipeline/test_spancat.py::test_set_candidates[spancat]": "asks for the candidates of a suggester",
    "pipeline/test_spancat.py::test_zero_suggestions[spancat]": "gives a suggester that finds nothing",
    "serialize/test_serialize_pipeline.py::test_issue4725_1": "asks for a setting of the oracle, update_with_oracle_cut_size",
}


def main(
    emissions: Annotated[Optional[str], typer.Option(help=f"One of {', '.join(EMISSIONS)}; by default all.")] = None,
) -> None:
    """Run the tests that come with spaCy, with our component in place of its ``ner``."""
    if emissions not in (None, *EMISSIONS):
        raise typer.BadParameter(f"{emissions} is none of {', '.join(EMISSIONS)}")
    console, surprises = Console(soft_wrap=True, highlight=False), 0
    table = Table(
        "emissions", "tests", "passed", "skipped", "failed", "without a reason", "of those making the component"
    )
    tests = list(SELECTED)
    for name in (emissions,) if emissions else EMISSIONS:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            outcomes = process.submit(run, name, tests).result()
        surprises += _tell(outcomes, console)
        passed, failed = outcomes.passed, outcomes.failed.keys()
        made = f"{len(outcomes.made & passed)} of {len(outcomes.made)} passed"
        unexplained = [test for test in failed if outcomes.reason(test) is None]
        counts = (outcomes.total, len(passed), len(outcomes.skipped), len(failed), len(unexplained))
        table.add_row(name, *map(str, counts), made)
        tests = sorted(outcomes.made)  # the others have seen the change already
    console.print(table)
    raise typer.Exit(1 if surprises else 0)


def _tell(outcomes: "Outcomes", console: Console) -> int:
    """Print why tests fail. RETURNS (int): Failures without a reason, and reasons without a failure."""
    surprises = 0
    console.print(f"[bold]{outcomes.emissions}[/bold]")
    for test, error in sorted(outcomes.failed.items()):
        reason = outcomes.reason(test)
        surprises += reason is None
        console.print(f"  {test}: {reason or error}", style=None if reason else "red", markup=False)
    for test in sorted(outcomes.passed):
        if outcomes.reason(test) is not None:
            surprises += 1
            console.print(f"  {test} passes: take its reason out of the table", style="red", markup=False)
    return surprises


class Outcomes:
    """A plugin of pytest that replaces the factory and keeps what became of each test, by name."""

    def __init__(self, emissions: str):
        self.emissions = emissions
        self.passed: set[str] = set()
        self.skipped: set[str] = set()
        self.failed: dict[str, str] = {}  # with the error
        self.made: set[str] = set()  # that made a component
        self._running = ""

    def reason(self, test: str) -> Optional[str]:
        return REASONS.get(test) or REASONS.get(test.partition("[")[0])

    @property
    def total(self) -> int:
        return len(self.passed | self.skipped | self.failed.keys())

    def pytest_configure(self, config: pytest.Config) -> None:
        sys.modules.setdefault("mock", mock)  # Python's own by now
        make = component_maker(self.emissions)
        for name in ("ner", "beam_ner"):

            @wraps(registry.factories.get(name))  # spaCy checks configs by the arguments
            def replaced(**settings: Any) -> CRFPipe:
                self.made.add(self._running)
                return make(**settings)

            registry.factories.register(name, func=replaced)
        make_spans = span_maker()

        @wraps(registry.factories.get("spancat"))
        def replaced_spans(**settings: Any) -> CRFPipe:
            self.made.add(self._running)
            return make_spans(**settings)

        registry.factories.register("spancat", func=replaced_spans)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed[report.nodeid] = crash.message if crash else str(report.longrepr)
        elif report.skipped:
            self.skipped.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)


class TellsSquares(CRFEntityRecognizer):
    """Says of its loss what a parser says."""

    def get_loss(self, examples, scores):
        _, d_scores = super().get_loss(examples, scores)
        return float((d_scores.emissions**2).sum()), d_scores


def component_maker(emissions: str) -> Callable[..., CRFPipe]:
    """Makes a ``crf_ner`` with these emissions of the settings of a ``ner``."""
    spacy.blank("en").add_pipe("crf_ner")  # registers what the entry points name
    ours = registry.factories.get("crf_ner")
    config = Config(Language.get_factory_meta("crf_ner").default_config)
    architecture = registry.architectures.get("spacy_crf.LinearChain.v1")
    if emissions == "hashed":
        features = config["model"]["emissions"]["features"]
        # One test has a thousand labels
        config["model"]["emissions"] = {
            "@architectures": "spacy_crf.HashedEmissions.v1",
            "features": features,
            "rows": 4096,
        }

    def make(nlp: Language, name: str, model: Model, incorrect_spans_key: Optional[str], scorer: Any, **others: Any):
        settings = registry.resolve(config)
        tok2vec = model.get_ref("tok2vec").layers[0]  # without the parser's own layer
        if emissions == "tok2vec" or isinstance(tok2vec, Tok2VecListener):
            settings["model"] = architecture(tok2vec=tok2vec)
        settings["model"].attrs["has_upper"] = model.attrs["has_upper"]
        settings.update(incorrect_spans_key=incorrect_spans_key, scorer=scorer)
        component = ours(nlp=nlp, name=name, **settings)
        component.__class__ = TellsSquares
        return component

    return make


def span_maker() -> Callable[..., CRFPipe]:
    """Makes a ``crf_spancat`` with the settings of a ``spancat`` that it has too."""
    spacy.blank("en").add_pipe("crf_spancat")
    ours = registry.factories.get("crf_spancat")
    config = Config(Language.get_factory_meta("crf_spancat").default_config)

    def make(nlp: Language, name: str, spans_key: str, threshold: float, max_positive: Optional[int], **others: Any):
        settings = {**registry.resolve(config), "spans_key": spans_key, "max_positive": max_positive}
        return ours(nlp=nlp, name=name, **{**settings, "threshold": threshold, "scorer": others["scorer"]})

    return make


def run(emissions: str, tests: list[str]) -> Outcomes:
    """Outcomes of tests, in a process of their own: the factory is replaced for good."""
    outcomes = Outcomes(emissions)
    options = [
        "-c",
        os.devnull,
        "--rootdir",
        str(SUITE),
        "-p",
        "no:cacheprovider",
        "--disable-warnings",
        "-q",
        "--tb=no",
    ]
    pytest.main([*options, *(str(SUITE / test) for test in tests)], plugins=[outcomes])
    return outcomes


if __name__ == "__main__":
    typer.run(main)
