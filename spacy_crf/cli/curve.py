"""`crf curve`: scores by the number of training texts."""

import io
import json
import time
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Optional

from spacy.cli._util import Opt
from spacy.tokens import Doc
from spacy.training.initialize import init_nlp
from spacy.training.loop import DIR_MODEL_BEST, train
from spacy.util import Config, dot_to_dict, dot_to_object
from wasabi import msg

from ..errors import quietly
from ..pipeline.corpora import doc_bin
from ..whole_files import write_whole
from .formats import ReadSettings
from .shared import (
    WITH_OVERRIDES,
    ChartOption,
    ConfigOption,
    FilesArgument,
    blank,
    check_writable,
    command,
    numbers,
    print_table,
    progress_bar,
    read_config,
    split_overrides,
)
from .texts import path_setting, read_docs, with_corpora


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
    files: FilesArgument = None,
    config: ConfigOption = None,
    dev: Optional[Path] = Opt(None, help="Texts for scoring; by default those of the config.", exists=True),
    shares: str = Opt("10,25,50,100", help="Shares of the training texts in percent, separated by commas."),
    output: ChartOption = None,
    as_json: bool = Opt(False, "--json", help="Print JSON for `evaluate --curve`."),
) -> None:
    """Train with growing parts of the training texts. The command scores each model on the dev texts. Each part contains the
    previous one, and each training works as `spacy train` does."""
    from ..report import charts

    with progress_bar("training") as progress:
        check_writable(output)
        must = "percentages of the training texts above 0 and up to 100, between commas"
        wanted = sorted(numbers("crf curve", "--shares", shares, lambda share: 0 < share <= 100, must))
        progress(total=sum(wanted))
        paths, overrides = split_overrides(files or ())
        settings = read_config(config, overrides, interpolate=False)
        setting = path_setting(settings, "train")
        with with_corpora(settings, paths, dev) as changed:
            path: Any = dot_to_object(changed.interpolate(), setting)
            nlp = blank(changed.interpolate()["nlp"]["lang"])
            docs = read_docs(Path(path or ""), nlp, ReadSettings(format="spacy", without_spans=True))
            # The digest orders texts at random and always alike, so each part contains the previous one
            order = sorted(range(len(docs)), key=lambda n: _digest(docs[n]))
            points = []
            for share in wanted:
                taken = sorted(order[: max(1, round(len(docs) * share / 100))])
                points.append(_train_share(changed, setting, [docs[n] for n in taken], share))
                progress(advance=share)
        if output is not None:
            chart = charts.learning_curve([(point.texts, point.score) for point in points])
            write_whole(output, charts.alone(chart))
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
    if output is not None:
        msg.good(f"Learning curve in {output}")


def _digest(doc: Doc) -> bytes:
    return blake2b(doc.text.encode("utf8", "surrogatepass")).digest()


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
    return CurvePoint(
        share=share,
        texts=len(docs),
        tokens=sum(map(len, docs)),
        score=sum(weights[key] * value for key, value in scores.items()),
        scores=scores,
        seconds=round(seconds, 2),
    )
