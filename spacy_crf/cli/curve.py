"""How much is gained by more training texts: what is reached with a tenth of them, a quarter, half and all."""

import io
import json
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training.initialize import init_nlp
from spacy.training.loop import DIR_MODEL_BEST, train
from spacy.util import Config
from wasabi import msg

from ..errors import Errors
from ..pipeline.doc_bin import doc_bin
from ..whole_files import write_whole
from .formats import Settings
from .group import app
from .reading import read_docs
from .shared import (
    CodeOption,
    blank,
    check_writable,
    import_code,
    print_table,
    quietly,
    read_config,
    read_overrides,
    told_briefly,
)


class Point(NamedTuple):
    """What training reached with a share of the texts."""

    share: float  # in percent
    texts: int
    tokens: int
    score: float
    scores: dict[str, float]  # those that it is made of
    seconds: float


@app.command("curve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def curve_cli(
    ctx: typer.Context,
    config: Annotated[
        Path, typer.Argument(help="As for `spacy train`; overrides such as --paths.train work.", exists=True)
    ],
    shares: Annotated[
        str, typer.Option("--shares", help="Of the training texts, in percent, between commas.")
    ] = "10,25,50,100",
    svg: Annotated[Optional[Path], typer.Option("--svg", help="Draw it to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, which `report --curve` draws.")] = False,
    code: CodeOption = None,
) -> None:
    """Train with parts of the training texts, and score them. Each part is within the next, trained as by `spacy train`, and
    scored on dev."""
    from rich.console import Console
    from rich.progress import Progress

    with told_briefly(), Progress(console=Console(stderr=True), transient=True) as progress:
        import_code(code)
        if svg is not None:
            check_writable(svg)
        wanted = _percents(shares)
        task = progress.add_task("training", total=sum(wanted))
        settings = read_config(config, read_overrides(ctx.args), interpolate=False)
        points = curve(settings, wanted, on_training=lambda share: progress.advance(task, share))
        if svg is not None:
            write_whole(svg, _drawn(points))
    if as_json:
        print(json.dumps([point._asdict() for point in points], indent=2))
        return
    _show(points)
    if svg is not None:
        msg.good(f"Learning curve in {svg}")


def curve(
    config: Config, shares: list[float], *, on_training: Callable[[float], None] = lambda share: None
) -> list[Point]:
    """Trains with each share of the training texts, and scores by what the best evaluation on dev was.

    config (Config): As for `spacy train`, not interpolated.
    shares (List[float]): In percent.
    on_training (Callable[[float], None]): Called after each training, with the share.
    RAISES (ValueError): CRF876 if the training corpus is no reader of a path; what `spacy train` would say.
    """
    name = _path_of_texts(config)
    files = Path(_at(config.interpolate(), name) or "")
    docs = _read(files, blank(config.interpolate()["nlp"]["lang"]))
    order = sorted(range(len(docs)), key=lambda n: blake2b(docs[n].text.encode("utf8", "surrogatepass")).digest())
    points = []
    for share in shares:
        taken = sorted(order[: max(1, round(len(docs) * share / 100))])
        points.append(_train(config, name, [docs[n] for n in taken], share))
        on_training(share)
    return points


def _train(config: Config, name: str, docs: list[Doc], share: float) -> Point:
    with TemporaryDirectory() as folder, quietly():
        texts, output = Path(folder) / "train.spacy", Path(folder) / "output"
        output.mkdir()
        doc_bin(docs).to_disk(texts)
        started = time.perf_counter()
        part = config.copy().merge(_nested(name, str(texts)))
        nlp = init_nlp(part)
        train(nlp, output, stdout=io.StringIO(), stderr=io.StringIO())
        seconds = time.perf_counter() - started
        performance = json.loads((output / DIR_MODEL_BEST / "meta.json").read_text(encoding="utf8"))["performance"]
        weights = {key: weight for key, weight in nlp.config["training"]["score_weights"].items() if weight}
    scores = {key: float(performance.get(key) or 0.0) for key in weights}
    score = sum(weights[key] * value for key, value in scores.items())
    return Point(share, len(docs), sum(map(len, docs)), score, scores, round(seconds, 2))


# ---------------------------------------------------------------------------------------------------------- config


def _path_of_texts(config: Config) -> str:
    """Where the config says which the training texts are: the variable, if it is one, since others may read it too.

    RAISES (ValueError): CRF876 if it says so nowhere.
    """
    corpus = config.interpolate().get("training", {}).get("train_corpus", "corpora.train")
    value = _at(config, f"{corpus}.path")
    if not isinstance(value, str):
        raise ValueError(Errors.CRF876.format(corpus=corpus))
    is_variable = value.startswith("${") and value.endswith("}") and ":" not in value
    return value[2:-1] if is_variable else f"{corpus}.path"


def _at(config: dict[str, Any], name: str) -> Any:
    for part in name.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def _nested(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def _read(path: Path, nlp: Language) -> list[Doc]:
    """RAISES (ValueError): CRF708 if there are no texts."""
    files = sorted(path.rglob("*.spacy")) if path.is_dir() else [path]
    docs = [doc for file in files for doc in read_docs(file, nlp, Settings(format="spacy", without_spans=True))]
    if not docs:
        raise ValueError(Errors.CRF708.format(path=path))
    return docs


def _percents(text: str) -> list[float]:
    """RAISES (ValueError): CRF877 if they are none."""
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] <= 0 or found[-1] > 100:
        raise ValueError(Errors.CRF877.format(value=text))
    return found


# ----------------------------------------------------------------------------------------------------------- shown


def _show(points: list[Point]) -> None:
    names = [name for name in points[0].scores if len(points[0].scores) > 1]
    rows = []
    for n, point in enumerate(points):
        gain = f"{100 * (point.score - points[n - 1].score):+.2f}" if n else ""
        scores = [f"{100 * point.scores[name]:.2f}" for name in names]
        size = (f"{point.share:g} %", f"{point.texts:,}", f"{point.tokens:,}")
        rows.append((*size, f"{100 * point.score:.2f}", gain, *scores, f"{point.seconds:.1f}"))
    print_table("learning curve", ("share", "texts", "tokens", "score", "gain", *names, "seconds"), rows)


def _drawn(points: list[Point]) -> bytes:
    from ..report import charts

    places = [(point.texts, point.score) for point in points]
    return charts.alone(charts.curve("Score by training texts", places, x_name="texts", y_name="score"))
