"""`crf curve`: scores by the number of training texts."""

import io
import json
import time
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import typer
from spacy.cli._util import Opt
from spacy.tokens import Doc
from spacy.training.initialize import init_nlp
from spacy.training.loop import DIR_MODEL_BEST, train
from spacy.util import Config, dot_to_dict, dot_to_object
from wasabi import msg

from ..errors import Errors, quietly
from ..pipeline.corpora import doc_bin
from ..whole_files import write_whole
from .formats import ReadSettings
from .shared import (
    WITH_OVERRIDES,
    ConfigArgument,
    SvgOption,
    blank,
    check_writable,
    command,
    numbers,
    print_table,
    progress_bar,
    read_config,
)
from .texts import read_docs


class CurvePoint(NamedTuple):
    """The score after training with a share of the texts."""

    share: float  # in percent
    texts: int
    tokens: int
    score: float
    scores: dict[str, float]  # `score` is the weighted sum of these
    seconds: float


@command("curve", context_settings=WITH_OVERRIDES)
def curve_cli(
    ctx: typer.Context,
    config: ConfigArgument,
    shares: str = Opt("10,25,50,100", help="Shares of the training texts in percent, separated by commas."),
    svg: SvgOption = None,
    as_json: bool = Opt(False, "--json", help="Print JSON for `report --curve`."),
) -> None:
    """Train with growing parts of the training texts. The command scores each model on the dev texts. Each part contains the
    previous one, and each training works as `spacy train` does."""
    from ..report import charts

    with progress_bar("training") as progress:
        check_writable(svg)
        must = "percentages of the training texts above 0 and up to 100, between commas"
        wanted = sorted(numbers("crf curve", "--shares", shares, lambda share: 0 < share <= 100, must))
        progress(total=sum(wanted))
        settings = read_config(config, ctx, interpolate=False)
        name = _path_of_texts(settings)
        interpolated = settings.interpolate()
        of_texts: Any = dot_to_object(interpolated, name)
        path = Path(of_texts or "")
        docs = read_docs(path, blank(interpolated["nlp"]["lang"]), ReadSettings(format="spacy", without_spans=True))
        order = sorted(range(len(docs)), key=lambda n: blake2b(docs[n].text.encode("utf8", "surrogatepass")).digest())
        points = []
        for share in wanted:
            taken = sorted(order[: max(1, round(len(docs) * share / 100))])
            points.append(_train_share(settings, name, [docs[n] for n in taken], share))
            progress(advance=share)
        if svg is not None:
            chart = charts.learning_curve([(point.texts, point.score) for point in points])
            write_whole(svg, charts.alone(chart))
    if as_json:
        print(json.dumps([point._asdict() for point in points], indent=2))
        return
    names = [name for name in points[0].scores if len(points[0].scores) > 1]
    rows = []
    for n, point in enumerate(points):
        gain = f"{100 * (point.score - points[n - 1].score):+.2f}" if n else ""
        scores = [f"{100 * point.scores[name]:.2f}" for name in names]
        size = (f"{point.share:g} %", f"{point.texts:,}", f"{point.tokens:,}")
        rows.append((*size, f"{100 * point.score:.2f}", gain, *scores, f"{point.seconds:.1f}"))
    print_table("learning curve", ("share", "texts", "tokens", "score", "gain", *names, "seconds"), rows)
    if svg is not None:
        msg.good(f"Learning curve in {svg}")


def _train_share(config: Config, name: str, docs: list[Doc], share: float) -> CurvePoint:
    """Train on a part of the texts. The score is the best evaluation on the dev corpus."""
    with TemporaryDirectory() as folder, quietly():
        texts = Path(folder) / "train.spacy"
        output = Path(folder) / "output"
        output.mkdir()
        doc_bin(docs).to_disk(texts)
        started = time.perf_counter()
        part = config.copy().merge(dot_to_dict({name: str(texts)}))
        nlp = init_nlp(part)
        train(nlp, output, stdout=io.StringIO(), stderr=io.StringIO())
        seconds = time.perf_counter() - started
        performance = json.loads((output / DIR_MODEL_BEST / "meta.json").read_text(encoding="utf8"))["performance"]
        weights = {key: weight for key, weight in nlp.config["training"]["score_weights"].items() if weight}
    scores = {key: float(performance.get(key) or 0.0) for key in weights}
    score = sum(weights[key] * value for key, value in scores.items())
    return CurvePoint(share, len(docs), sum(map(len, docs)), score, scores, round(seconds, 2))


def _path_of_texts(config: Config) -> str:
    """Name of the setting that holds the path of the training texts: the variable if the reader uses one, since other settings
    may use it too.

    RAISES (ValueError): CRF876 if there is no such setting.
    """
    corpus = config.interpolate().get("training", {}).get("train_corpus", "corpora.train")
    try:
        value = dot_to_object(config, f"{corpus}.path")
    except KeyError:
        value = None
    if not isinstance(value, str):
        raise ValueError(Errors.CRF876.format(corpus=corpus))
    is_variable = value.startswith("${") and value.endswith("}") and ":" not in value
    return value[2:-1] if is_variable else f"{corpus}.path"
