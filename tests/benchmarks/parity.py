"""The same model as CRFsuite's, from CoNLL-2000 with the features of its example: ``python -m tests.benchmarks.parity``.

``crf_tagger`` learns the chunk tags as they are, without a scheme that forbids some, because CRFsuite knows no scheme:
then both minimize the same objective over the same weights. Expect five minutes on two cores.
"""

import math
from typing import NamedTuple, Optional

import typer

from .data import read_sentences
from .measure import show
from .ours import EXAMPLE_MODEL, crf_result
from .rivals import EXAMPLE_PARAMS, crfsuite_result

PASSES_TO_TIME = 20


def main(
    iterations: Optional[int] = typer.Option(
        None, help="Stop both after so many iterations; scores are promised at convergence only."
    ),
    cached: bool = typer.Option(False, help="Take CRFsuite's numbers from an earlier run: its times mean little then."),
) -> None:
    """Compare with python-crfsuite on CoNLL-2000, with exactly the features of its chunking example."""
    limit = {"max_iterations": iterations} if iterations else {}
    train = read_sentences("conll2000", "train")
    at_zero = sum(len(s.words) for s in train) * math.log(len({tag for s in train for tag in s.tags}))

    theirs = crfsuite_result("conll2000", "example", fresh=not cached, **limit)
    config = {"model": EXAMPLE_MODEL, "overwrite": True}  # the chunk tags take the place of the parts of speech
    l2 = EXAMPLE_PARAMS["c2"]
    ours = crf_result("conll2000", "crf_tagger", config, threads=1, l2=l2, **limit)
    on_two = crf_result("conll2000", "crf_tagger", config, threads=2, l2=l2, max_iterations=PASSES_TO_TIME)

    a, b = ours.training, theirs.training
    lines = [
        Line("weights (features)", a.features, b.features, "equal", a.features == b.features),
        Line("objective at zero", a.objective_at_zero, at_zero, "equal", math.isclose(a.objective_at_zero, at_zero)),
        Line("iterations", a.iterations, b.iterations),
        Line("passes", a.passes, b.passes),
        Line("objective at the end", a.objective, b.objective, "± 0.1 %", abs(a.objective / b.objective - 1) <= 0.001),
        Line("token accuracy, %", ours.accuracy, theirs.accuracy, "≥ 95.9", ours.accuracy >= 95.9),
        Line("F1 of chunks, %", ours.f1, theirs.f1, "≥ 93.5", ours.f1 >= 93.5),
        Line.at_most("seconds a pass, one thread", a.seconds_per_pass, b.seconds_per_pass, 0.5),
        Line.at_most("seconds a pass, two threads", on_two.training.seconds_per_pass, b.seconds_per_pass, 0.5),
        Line("seconds from Docs to model, one thread", ours.train_seconds, theirs.train_seconds),
        Line("tokens/s, Docs to tags", round(ours.tokens_per_second), round(theirs.tokens_per_second)),
        Line("model, MB", ours.model_mb, theirs.model_mb),
        Line("peak memory, MB", ours.peak_mb, theirs.peak_mb),
    ]
    header = ("CoNLL-2000", "spacy_crf", "CRFsuite", "ratio", "must", "")
    show("Parity with python-crfsuite", header, [line.cells() for line in lines])


class Line(NamedTuple):
    name: str
    ours: float
    theirs: float
    must: str = ""
    met: Optional[bool] = None

    @classmethod
    def at_most(cls, name: str, ours: float, theirs: float, share: float) -> "Line":
        return cls(name, ours, theirs, f"ratio ≤ {share}", ours / theirs <= share)

    def cells(self) -> list[object]:
        verdict = "" if self.met is None else "met" if self.met else "MISSED"
        return [self.name, self.ours, self.theirs, self.ours / self.theirs, self.must, verdict]


if __name__ == "__main__":
    typer.run(main)
