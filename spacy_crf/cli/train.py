"""Commands that train: on shards of a corpus, on new texts, with cross-validated settings, with growing parts of the texts, and
on a few words to compile the kernels."""
# pyright: reportInvalidTypeForm=false

import copy
import io
import json
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
import spacy
import typer
from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import DIR_MODEL_BEST, train
from spacy.util import Config, dot_to_dict, dot_to_object, load_config
from wasabi import msg

from .. import checks
from ..errors import Warnings, counted, no_component, quietly
from ..pipeline.corpora import doc_bin
from ..whole_files import write_whole
from .configs import PRESETS, ComponentName, known_of_words, missing_packages
from .formats import ReadSettings
from .look import Search, look
from .shared import (
    CONFIGS,
    WITH_OVERRIDES,
    ChartOption,
    ComponentOption,
    ConfigOption,
    DataArgument,
    FilesArgument,
    ModelArgument,
    PipelineOption,
    blank,
    check_writable,
    command,
    load_pipeline,
    numbers,
    our_pipes,
    print_table,
    progress_bar,
    read_config,
    save_pipeline,
    split_overrides,
)
from .texts import (
    ANNOTATED,
    PREDICTED,
    SUSPECTS,
    path_setting,
    read_all_examples,
    read_docs,
    read_examples,
    with_corpora,
)

if TYPE_CHECKING:
    from ..race import Fitted


_CLOCK = {"@batchers": "spacy_crf.clock.v1"}
_LOCAL = "local"  # an address: start a cluster on this machine


@command("train", context_settings=WITH_OVERRIDES)
def train_cli(
    ctx: typer.Context,
    config: Path = Arg(..., help="A training config; overrides such as --paths.train work.", exists=True),
    shards: int = Opt(..., help="Number of parts of the corpus. It changes the weights slightly."),
    output: Optional[Path] = Opt(None, "--output", "-o", help="Folder to write the pipelines to."),
    workers: Optional[int] = Opt(None, help="Number of workers; by default one per shard, at most one per core."),
    ray: Optional[str] = Opt(None, help="Address of a Ray cluster; 'local' starts one on this machine."),
    cores: int = Opt(1, help="Number of cores of each worker of a Ray cluster."),
    path: Optional[Path] = Opt(None, help="Folder of the shards; by default OUTPUT/shards."),
    component: ComponentOption = None,
) -> None:
    """Train with several processes, or with workers of a Ray cluster. Each worker counts features and computes gradients on a
    part of the corpus. To continue a command that was stopped, give the command again."""
    from spacy.cli.train import train

    with TemporaryDirectory() as folder:
        if path is None:
            path = Path("shards") if output is None else output / "shards"
        settings: dict[str, object] = {"n": shards, "workers": workers, "path": str(path)}
        if ray is not None:
            settings.update(executor="ray", address=None if ray == _LOCAL else ray)
        if cores > 1:
            settings["cores"] = cores
        unchanged = read_config(config, ctx.args, interpolate=False)
        on_shards(unchanged, settings, component).to_disk(Path(folder) / "config.cfg")
        train(Path(folder) / "config.cfg", output)


def on_shards(config: Config, settings: dict[str, object], component: Optional[str] = None) -> Config:
    """Copy a config, and change the copy such that components of spacy_crf are trained on shards.

    config (Config): A config for `spacy train`, not interpolated.
    settings (dict): Settings of `spacy_crf.shards.v1`. Each component gets its own folder in the folder `path`.
    component (str): Name of the only component to train on shards; None for all of spacy_crf.
    RAISES (ValueError): CRF710 if there is no such component.
    """
    config = config.copy()
    names = [
        name
        for name, block in config["components"].items()
        if block.get("factory") in PRESETS and component in (None, name)
    ]
    if not names:
        raise no_component("of spacy_crf to train on shards", config["components"], component)
    train_corpus = config["training"].get("train_corpus", "corpora.train")
    corpus = dict(dot_to_object(config, train_corpus))
    # Shards exist to save memory, but this reader keeps the whole corpus there
    if corpus.get("@readers") == "spacy_crf.Corpus.v1":
        corpus["@readers"] = "spacy.Corpus.v1"
    initialize = config.setdefault("initialize", {}).setdefault("components", {})
    for name in names:
        block = initialize.setdefault(name, {})
        block.setdefault("corpus", copy.deepcopy(corpus))
        shards = {"@misc": "spacy_crf.shards.v1", **block.get("shards", {}), **settings}
        shards["path"] = str(Path(str(settings["path"])) / name)
        block["shards"] = shards
    # Training on shards reads no batches: an epoch is a tick of the clock. Other components need batches of texts
    if {*names} == {*config["nlp"]["pipeline"]}:
        config["training"].update(max_epochs=-1, batcher=dict(_CLOCK))
    return config


@command("update")
def update_cli(
    model: ModelArgument,
    data: DataArgument,
    output: PipelineOption,
    dev: Optional[Path] = Opt(None, help="Annotated texts for scoring the pipeline.", exists=True),
    component: ComponentOption = None,
    labels: Optional[str] = Opt(None, help="The texts are annotated for these labels only, separated by commas."),
    l2: float = Opt(0.1, help="Weight of the squared distance from the old weights."),
) -> None:
    """Continue the training of a pipeline on new texts. The training adds new labels and features, and
    changes old weights as little as the new texts allow. The command prints the scores before and after."""
    from ..optimizers.lbfgs import LBFGS
    from ..pipeline.annotation.entities import Entities
    from ..pipeline.new_texts import complete, contradicted
    from ..pipeline.training import labels_of

    nlp = load_pipeline(model)
    check_writable(output / "meta.json")
    pipes = our_pipes(nlp, component, "of spacy_crf to update", of_tokens=False)
    finders = [pipe for pipe in pipes if isinstance(pipe.annotation, Entities)]
    if labels is not None and not finders:
        raise no_component("that finds entities or spans, which --labels is about", nlp.pipe_names, component)
    names = [pipe.name for pipe in pipes]
    # Spans of annotation tools become doc.spans[spans_key], or doc.ents if the components do not agree on a key
    spans_keys = {pipe.cfg.get("spans_key") for pipe in pipes}
    spans_key = spans_keys.pop() if len(spans_keys) == 1 else None
    examples = read_examples(data, nlp, spans_key)
    scored = {} if dev is None else {"dev": read_examples(dev, nlp, spans_key)}
    scored["new texts"] = examples
    for pipe in finders:
        if labels is not None:
            wanted = [label.strip() for label in labels.split(",")]
            checks.labels(f"--labels of '{pipe.name}'", wanted, sorted(labels_of(pipe, examples)))
            complete(nlp, pipe, examples, wanted)
        for label, spans in contradicted(nlp, pipe, examples).items():
            pipe.warn(Warnings.CRFW908, n=len(spans), label=label, text=spans[0].text, start=spans[0].doc.text[:40])
    # Scored now, since training changes the pipeline
    scores_before = {title: _scores(nlp, names, texts) for title, texts in scored.items()}
    sgd = nlp.resume_training(sgd=LBFGS(l2=l2, iterations_per_step=100))
    others = [name for name in nlp.pipe_names if name not in names]
    annotates = (nlp.config.get("training") or {}).get("annotating_components") or []
    # LBFGS makes 100 iterations in each step, and stops when it has converged
    for _ in range(10):
        nlp.update(examples, sgd=sgd, exclude=others, annotates=annotates)
    save_pipeline(nlp, output)
    for title, texts in scored.items():
        before = scores_before[title]
        after = _scores(nlp, names, texts)
        rows = []
        for name in {**after, **before}:  # in the order of `after`
            cells = ["" if score is None else f"{100 * score:.2f}" for score in (before.get(name), after.get(name))]
            rows.append((name, *cells))
        print_table(title, ("", "before", "after"), rows, n_texts=1)
    msg.good(f"Updated pipeline in {output}")


def _scores(nlp: Language, names: Iterable[str], examples: list[Example]) -> dict[str, Optional[float]]:
    """Evaluate a pipeline on examples.

    names (Iterable[str]): Components whose scores are wanted.
    RETURNS (dict[str, Optional[float]]): Those of their scores that have a weight by default, and the F score of each label of
        entities, by the name of the score or label.
    """
    evaluated = nlp.evaluate(examples)
    scores = {}
    for name in names:
        weights: Any = nlp.get_pipe_meta(name).default_score_weights
        for score, weight in weights.items():
            if weight:
                scores[score] = evaluated.get(score)
    for label, prf in sorted((evaluated.get("ents_per_type") or {}).items()):
        scores[label] = prf["f"]
    return scores


# `_annotated` labels words with a capital letter as names
_COMPILED_TEXTS = [
    "Ann Lee lives in New York City .",
    "Bob left Paris for Acme Foods .",
    "nobody was there",
    "Acme Foods hired Ann Lee , Bob and 12 others on Monday .",
    "In New York it rains .",
    "yes",
]


@command("compile", has_code=False)
def compile_cli(
    components: Optional[list[ComponentName]] = Arg(None, help="The components; by default all of spacy_crf."),
    jobs: int = Opt(0, help="Number of processes; by default one for each core, at most four.", min=0),
) -> None:
    """Compile the kernels that components need, and keep them. The command trains each component on a few words with its config
    from `init-config`, saves it, loads it and applies it, so that later trainings with this config, and predictions of its
    model, compile nothing."""
    from ..kernels import cache_folder
    from ..kernels.announcing import announcer
    from ..kernels.compiling import crew

    crew.jobs = jobs or crew.jobs
    for component in [name.value for name in components or ComponentName]:
        compiled_before = announcer.compiled + crew.n_elsewhere
        started = time.perf_counter()
        with TemporaryDirectory() as folder, quietly():
            path = Path(folder, "texts.spacy")
            nlp = spacy.blank("en")
            doc_bin(_annotated(nlp, text.split()) for text in _COMPILED_TEXTS).to_disk(path)
            paths = {"paths.train": str(path), "paths.dev": str(path)}
            nlp = init_nlp(load_config(CONFIGS / f"{component}.cfg", overrides=paths))
            train(nlp, Path(folder), stdout=io.StringIO(), stderr=io.StringIO())
            list(spacy.load(Path(folder, "model-best")).pipe(_COMPILED_TEXTS))
        compiled = announcer.compiled + crew.n_elsewhere - compiled_before
        seconds = time.perf_counter() - started
        if compiled:
            msg.good(f"{component}: {counted(compiled, 'kernel')} compiled in {seconds:.0f} s")
        else:
            msg.good(f"{component}: everything is compiled already")
    msg.info(f"Kept in {cache_folder(__file__).parent}")


def _annotated(nlp: Language, words: list[str]) -> Doc:
    """Make a Doc with annotation for every component of spacy_crf: a sentence, entities, spans, tags, and labels of the text."""
    is_name = [word[0].isupper() for word in words]
    tags = ["NAME" if named else "WORD" for named in is_name]
    ents = []
    for named, before in zip(is_name, [False, *is_name]):
        boundary = "I" if before else "B"
        ents.append(f"{boundary}-NAME" if named else "O")
    begins_sentence: list[Union[bool, int, None]] = [n == 0 for n in range(len(words))]
    doc = Doc(nlp.vocab, words=words, tags=tags, ents=ents, sent_starts=begins_sentence)
    # Nested spans, for crf_spancat
    doc.spans["sc"] = [*doc.ents, *(Span(doc, ent.start, ent.start + 1, label="FIRST") for ent in doc.ents)]
    doc.cats = {"NAMES": float(any(is_name)), "NONE": float(not any(is_name))}
    return doc


GAIN = "They gain where annotation is rare, clusters about 4 F1 with 200 sentences"
# Folder in the pipeline's folder for the held-out texts: annotated, and as predicted
HELD_OUT = "held_out"


@command("fit", context_settings=WITH_OVERRIDES)
def fit_cli(
    files: FilesArgument,
    output: PipelineOption,
    config: Optional[Path] = Opt(None, help="A training config; by default chosen by the texts.", exists=True),
    lang: Optional[str] = Opt(None, help="Language of the chosen config; by default shown by the words."),
    dev: Optional[Path] = Opt(None, help="Texts for scoring the pipeline only.", exists=True),
    folds: int = Opt(5, help="Number of folds; each is held out once."),
    l1: Optional[str] = Opt(None, help="Values to try, separated by commas; by default 0,0.05 (fields: 0.05,0.02)."),
    l2: Optional[str] = Opt(None, help="Values to try, separated by commas; by default 0.1,0.03 (fields: 0.03,0.01)."),
    words: bool = Opt(True, "--words/--no-words", help="Try clusters, lists and vectors of installed packages."),
    thresholds: Optional[bool] = Opt(
        None,
        "--thresholds/--no-thresholds",
        help="Try leaving out entities below a probability; by default not for fields.",
    ),
    optimize: Optional[str] = Opt(
        None,
        help="Score that chooses: f for F1, texts for the share of texts without mistake; by default f (fields: texts).",
    ),
    calibrate: bool = Opt(
        True,
        "--calibrate/--no-calibrate",
        help="Divide scores, so that probabilities fit held-out texts.",
    ),
    seed: int = Opt(0, help="Random seed that draws the folds."),
) -> None:
    """Train on all texts with cross-validated settings. No text is set aside for good: each fold is held out once
    to score values of l1 and l2, thresholds of probabilities, and what is known of words. The best settings train on all texts.

    Without --config, the command looks at the texts – entities, fields, nested spans, tags, labels of texts – and writes the
    config that suits them beside the pipeline. Of a folder with train, dev and test, test is left alone.
    """
    from ..cross_validation import fit

    check_writable(output / "meta.json")
    paths, overrides = split_overrides(files or ())
    l1_values = None if l1 is None else _regularizers("--l1", l1)
    l2_values = None if l2 is None else _regularizers("--l2", l2)
    checks.expect(
        lang is None or config is None, "crf fit", "--lang", lang, "left out with --config, which has nlp.lang"
    )
    search = Search()
    spans_key = None
    test: list[Path] = []

    def read(nlp: Language) -> list[Example]:
        return read_all_examples(paths, nlp)

    if config is None:
        found = look(paths, lang)
        config = Path(f"{output}.cfg")
        found.write_config(config)
        read = found.examples
        search = found.tasks[0].search
        spans_key = found.reading.settings.spans_key
        test = found.files.test
    settings = read_config(config, overrides, interpolate=True)
    with progress_bar("training", "fold") as progress:
        with quietly():
            nlp, fitted = fit(
                settings,
                read,
                folds=folds,
                l1=l1_values or search.l1,
                l2=l2_values or search.l2,
                words=known_of_words(settings["nlp"]["lang"]) if words else {},
                thresholds=search.thresholds if thresholds is None else thresholds,
                optimize=optimize or search.optimize,
                calibrate=calibrate,
                seed=seed,
                on_fold=lambda: progress(advance=1),
            )
        scores = {} if dev is None else nlp.evaluate(read_examples(dev, nlp, spans_key))
        _save_fitted(nlp, fitted, output)
    weighted = set()
    for component in fitted:
        _show_fitted(component, folds)
        weights: dict[str, Any] = {"token_f": 1.0, "sents_f": 1.0}  # of a tokenizer
        if component.name in nlp.pipe_names:
            weights = nlp.get_pipe_meta(component.name).default_score_weights or {}
        weighted.update(name for name, weight in weights.items() if weight)
    if dev is not None:
        # Only scores that choose the best model in training are worth a row
        rows = [(name, f"{100 * scores[name]:.2f}") for name in sorted(weighted) if scores.get(name) is not None]
        print_table(str(dev), ("", "score"), rows, n_texts=1)
    missing = missing_packages(str(nlp.lang))
    if words and missing:
        msg.info(f"Not tried: words in {', '.join(missing)}. {GAIN}: pip install 'spacy-crf[words]'")
    msg.good(f"Pipeline in {output}, trained on all texts; predictions of the held-out texts in {output / HELD_OUT}")
    for path in test:
        msg.info(f"Next: python -m spacy crf evaluate {output} {path}")
    msg.info(f"Next: python -m spacy crf show {output} 'A text of yours'")


def _save_fitted(nlp: Language, fitted: "list[Fitted]", output: Path) -> None:
    """Save the pipeline with its scores on held-out texts, and these texts with their annotation and with their predictions."""
    from ..cross_validation import performance
    from ..report.suspects import to_jsonl

    nlp.meta["performance"] = performance(nlp, fitted)
    save_pipeline(nlp, output)
    for component in fitted:
        folder = output / HELD_OUT / component.name
        folder.mkdir(parents=True, exist_ok=True)
        doc_bin(example.reference for example in component.held_out).to_disk(folder / ANNOTATED)
        doc_bin(example.predicted for example in component.held_out).to_disk(folder / PREDICTED)
        write_whole(folder / SUSPECTS, to_jsonl(component.suspects).encode("utf8"))


def _show_fitted(fitted: "Fitted", folds: int) -> None:
    """Print a table of a component's candidates, the winner first and in bold, and the score to expect on new texts."""
    columns = ("", "words", "l1", "l2", "min_prob", "F1", "whole\ntexts", "behind\nthe best", "folds")
    rows = []
    for trial in fitted.trials:
        # Scores over different texts can't be compared, but the difference on the same texts can
        is_best = trial is fitted.chosen
        scores = [f"{100 * score:.1f}" if trial.folds == folds else "" for score in (trial.f, trial.whole_texts)]
        behind = "" if is_best else f"{100 * trial.behind:.1f} ± {100 * trial.error:.1f}"
        words, l1, l2 = trial.candidate
        min_prob = "best path" if trial.min_prob is None else f"{trial.min_prob:.2f}"
        mark = "best" if is_best else ""
        rows.append([mark, words, f"{l1:g}", f"{l2:g}", min_prob, *scores, behind, f"{trial.folds}"])
    print_table(
        f"{fitted.name}: {folds} folds of {counted(fitted.texts, 'text')}", columns, rows, n_texts=1, bold=rows[0]
    )
    msg.info(f"{fitted.name}: {fitted.expectation()}")
    if fitted.temperature != 1.0:
        errors = f"{fitted.error_before:.3f} before, {fitted.error_after:.3f} after"
        divided = f"scores divided by {fitted.temperature:.2f}"
        msg.info(f"{fitted.name}: probabilities: {divided}, calibration error on held-out texts {errors}")


def _regularizers(option: str, text: str) -> list[float]:
    """Parse the values of --l1 or --l2. RAISES (ValueError): CRF020 unless all values are finite and at least 0."""
    return numbers("crf fit", option, text, lambda value: 0 <= value < np.inf, "numbers of at least 0, between commas")


class CurvePoint(NamedTuple):
    """The scores on the dev texts after training with a share of the training texts."""

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
        percentages = sorted(numbers("crf curve", "--shares", shares, lambda share: 0 < share <= 100, must))
        progress(total=sum(percentages))
        paths, overrides = split_overrides(files or ())
        settings = read_config(config, overrides, interpolate=False)
        setting = path_setting(settings, "train")  # names the path of the training texts
        with with_corpora(settings, paths, dev) as with_texts:
            interpolated = with_texts.interpolate()
            path: Any = dot_to_object(interpolated, setting)
            nlp = blank(interpolated["nlp"]["lang"], interpolated["nlp"].get("tokenizer"))
            docs = read_docs(Path(path or ""), nlp, ReadSettings(format="spacy", without_spans=True))
            # The digest orders texts at random and always alike, so each part contains the previous one
            shuffled = sorted(range(len(docs)), key=lambda n: _digest(docs[n]))
            points = []
            for share in percentages:
                n_texts = max(1, round(len(docs) * share / 100))
                part = [docs[n] for n in sorted(shuffled[:n_texts])]
                points.append(_train_share(with_texts, setting, part, share))
                progress(advance=share)
        if output is not None:
            chart = charts.learning_curve([(point.texts, point.score) for point in points])
            write_whole(output, charts.alone(chart))
    if as_json:
        print(json.dumps([point._asdict() for point in points], indent=2))
        return
    # A single score is `point.score`, which has a column
    names = list(points[0].scores) if len(points[0].scores) > 1 else []
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


def _train_share(config: Config, setting: str, docs: list[Doc], share: float) -> CurvePoint:
    """Train on a part of the texts, and score the best model on the dev corpus.

    setting (str): Name of the setting with the path of the training texts, such as "paths.train".
    docs (list[Doc]): The part of the texts.
    share (float): How much of the texts this is, in percent.
    """
    with TemporaryDirectory() as folder, quietly():
        texts = Path(folder) / "train.spacy"
        output = Path(folder) / "output"
        output.mkdir()
        doc_bin(docs).to_disk(texts)
        started = time.perf_counter()
        # As `spacy train` would with fewer texts: everything but the path stays
        nlp = init_nlp(config.copy().merge(dot_to_dict({setting: str(texts)})))
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
