"""The presets against CRFsuite with a strong hand-made feature set: ``python -m tests.benchmarks.accuracy``."""

import time
from typing import Any, Optional

import typer

from .data import SETS
from .measure import Result, show
from .ours import SpansF1, crf_result
from .rivals import STRONG_PARAMS, crfsuite_result

# One setting for all sets, the rival's: what differs is the features. Small sets are trained until both converge, since before
# that a few tenths of F1 are chance; the others, where CRFsuite would need half an hour each, for some iterations.
SETTINGS = {"l1": STRONG_PARAMS["c1"], "l2": STRONG_PARAMS["c2"]}
SMALL = ("usaddress", "wnut17", "mit_restaurant", "cora_refs")
MAX_ITERATIONS = 150
# The rival sees the parts of speech of conll2000 too.
EXTRA = {"conll2000": ["tag[-2..2]"]}
DEFAULT_SETS = list(SETS)[:8]  # the others take more than ten minutes
LEAST_ACCURACY = {"ud_ewt_xpos": 95.0}


def main(
    sets: str = typer.Option(",".join(DEFAULT_SETS), help=f"Comma-separated, of: {', '.join(SETS)}."),
    minutes: Optional[float] = typer.Option(None, help="Begin no further set after so many minutes."),
    fresh: bool = typer.Option(False, help="Train CRFsuite again even if its result is known from an earlier run."),
) -> None:
    """F1 of entities, or accuracy of tags, on `test` after training on `train` as the files in configs/ say."""
    names = [name for name in sets.split(",") if name]
    for name in names:
        if name not in SETS:
            raise typer.BadParameter(f"There is no set {name!r}, only {', '.join(SETS)}.")
    start = time.perf_counter()
    compared, left_out = [], []
    for name in names:
        if minutes is not None and time.perf_counter() - start > 60 * minutes:
            left_out.append(name)
        else:
            compared.append(compare(name, fresh=fresh))
    note = f"F1 of entities in percent; * accuracy of tags. L-BFGS with {SETTINGS} on both sides: {', '.join(SMALL)} until it "
    note += f"converges, the others for {MAX_ITERATIONS} iterations. By spans: min_prob chosen on dev, or on a fifth of the "
    note += "training data by a pipeline trained on the rest; expected: by the F1 that the model itself expects there."
    if left_out:
        note += f" Left out after {minutes} minutes: {', '.join(left_out)}."
    header = ["set", "CRFsuite", "ours", "difference", "", "by spans", "difference", "min_prob"]
    header += ["expected", "difference", "min_prob"]
    show("Accuracy of the presets", header, [accuracy(*each) for each in compared], note=note)
    header = ["set", "iterations", "CRFsuite", "train s", "CRFsuite", "tokens/s", "CRFsuite", "MB", "CRFsuite"]
    show("What they cost", header, [costs(*each) for each in compared])


def compare(name: str, *, fresh: bool) -> tuple[str, Result, Result]:
    """The name of a set, CRFsuite's result and ours."""
    stop = {} if name in SMALL else {"max_iterations": MAX_ITERATIONS}
    theirs = crfsuite_result(name, "strong", fresh=fresh, **stop)
    entities = SETS[name].entities
    factory = "crf_ner" if entities else "crf_tagger"
    return name, theirs, crf_result(name, factory, config(name), by_spans=entities, **SETTINGS, **stop)


def accuracy(name: str, theirs: Result, ours: Result) -> list[object]:
    """Cells of one row of the first table."""
    if not SETS[name].entities:
        met = "met" if ours.accuracy >= LEAST_ACCURACY[name] else "MISSED"
        difference = f"{ours.accuracy - theirs.accuracy:+.2f}"
        return [f"{name} *", theirs.accuracy, ours.accuracy, difference, met, *[None] * 6]
    met = "met" if ours.f1 >= theirs.f1 else "MISSED"
    cells: list[object] = [name, theirs.f1, ours.f1, f"{ours.f1 - theirs.f1:+.2f}", met]
    spans = SpansF1(*ours.spans)
    for f1, min_prob in ((spans.held_out, spans.min_prob), (spans.expected, spans.expected_min_prob)):
        cells += [f1, f"{f1 - theirs.f1:+.2f}", f"{min_prob:g}"]
    return cells


def costs(name: str, theirs: Result, ours: Result) -> list[object]:
    """Cells of one row of the second table."""
    return [
        name,
        ours.training.iterations,
        theirs.training.iterations,
        round(ours.train_seconds),
        round(theirs.train_seconds),
        round(ours.tokens_per_second),
        round(theirs.tokens_per_second),
        ours.model_mb,
        theirs.model_mb,
    ]


def config(name: str) -> dict[str, Any]:
    """What the files in configs/ have."""
    entities = SETS[name].entities
    preset = f"spacy_crf.{'ner' if entities else 'tagger'}_features.v1"
    features = {"@misc": preset, "extra": EXTRA.get(name, [])}
    return {"model": {"emissions": {"features": features}}, **({"scheme": "auto"} if entities else {})}


if __name__ == "__main__":
    typer.run(main)
