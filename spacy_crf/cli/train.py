"""Commands that train: on shards of a corpus, on new texts, and on a few words to compile the kernels."""
# pyright: reportInvalidTypeForm=false

import copy
import io
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Optional

import spacy
import typer
from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import Config, dot_to_object, load_config
from wasabi import msg

from .. import checks
from ..errors import Warnings, counted, no_component, quietly
from ..pipeline.corpora import doc_bin
from .configs import PRESETS, ComponentName
from .shared import (
    CONFIGS,
    WITH_OVERRIDES,
    ComponentOption,
    DataArgument,
    ModelArgument,
    PipelineOption,
    check_writable,
    command,
    load_pipeline,
    our_pipes,
    print_table,
    read_config,
    save_pipeline,
)
from .texts import read_examples

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
    """Train with several processes or workers of a Ray cluster. Each works on a part of the corpus. To continue a command
    that was stopped, give it again."""
    from spacy.cli.train import train

    with TemporaryDirectory() as folder:
        folder_of_shards = path or (Path("shards") if output is None else output / "shards")
        settings: dict[str, object] = {"n": shards, "workers": workers, "path": str(folder_of_shards)}
        if ray is not None:
            settings.update(executor="ray", address=None if ray == _LOCAL else ray)
        if cores > 1:
            settings.update(cores=cores)
        changed = on_shards(read_config(config, ctx.args, interpolate=False), settings, component)
        changed.to_disk(Path(folder) / "config.cfg")
        train(Path(folder) / "config.cfg", output)


def on_shards(config: Config, settings: dict[str, object], component: Optional[str] = None) -> Config:
    """Make a config that trains components of spacy_crf on shards.

    config (Config): A config for `spacy train`, not interpolated.
    settings (dict): Settings of `spacy_crf.shards.v1`. Each component gets its own folder in `path`.
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
    corpus = copy.deepcopy(dict(dot_to_object(config, config["training"].get("train_corpus", "corpora.train"))))
    if corpus.get("@readers") == "spacy_crf.Corpus.v1":  # this reader keeps the corpus in memory
        corpus["@readers"] = "spacy.Corpus.v1"
    initialize = config.setdefault("initialize", {}).setdefault("components", {})
    for name in names:
        block = initialize.setdefault(name, {})
        block.setdefault("corpus", copy.deepcopy(corpus))
        path = str(Path(str(settings["path"])) / name)
        block["shards"] = {"@misc": "spacy_crf.shards.v1", **block.get("shards", {}), **settings, "path": path}
    if {*names} == {*config["nlp"]["pipeline"]}:  # other components need batches of texts
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
    keys = {pipe.cfg.get("spans_key") for pipe in pipes}
    spans_key = keys.pop() if len(keys) == 1 else None
    examples = read_examples(data, nlp, spans_key)
    sets = {} if dev is None else {"dev": read_examples(dev, nlp, spans_key)}
    sets["new texts"] = examples
    for pipe in finders:
        if labels is not None:
            wanted = [label.strip() for label in labels.split(",")]
            checks.labels(f"--labels of '{pipe.name}'", wanted, sorted(labels_of(pipe, examples)))
            complete(nlp, pipe, examples, wanted)
        for label, spans in contradicted(nlp, pipe, examples).items():
            pipe.warn(Warnings.CRFW908, n=len(spans), label=label, text=spans[0].text, start=spans[0].doc.text[:40])
    before = {title: _scores(nlp, names, texts) for title, texts in sets.items()}
    sgd = nlp.resume_training(sgd=LBFGS(l2=l2, iterations_per_step=100))
    others = [name for name in nlp.pipe_names if name not in names]
    annotates = (nlp.config.get("training") or {}).get("annotating_components") or []
    # LBFGS makes 100 iterations in each step, and stops when it has converged
    for _ in range(10):
        nlp.update(examples, sgd=sgd, exclude=others, annotates=annotates)
    save_pipeline(nlp, output)
    for title, texts in sets.items():
        after = _scores(nlp, names, texts)
        rows = []
        for name in {**after, **before[title]}:
            both = (before[title].get(name), after.get(name))
            rows.append((name, *("" if score is None else f"{100 * score:.2f}" for score in both)))
        print_table(title, ("", "before", "after"), rows, n_texts=1)
    msg.good(f"Updated pipeline in {output}")


def _scores(nlp: Language, names: Iterable[str], examples: list[Example]) -> dict[str, Optional[float]]:
    """The scores of components that have a weight, and the F score of each label."""
    found = nlp.evaluate(examples)
    scores = {}
    for name in names:
        weights: Any = nlp.get_pipe_meta(name).default_score_weights
        for score, weight in weights.items():
            if weight:
                scores[score] = found.get(score)
    for label, of_label in sorted((found.get("ents_per_type") or {}).items()):
        scores[label] = of_label["f"]
    return scores


# The annotation labels words with a capital letter as names
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
) -> None:
    """Compile the kernels that components need, and keep them. The command trains each component on a few words with its config
    from `init-config`, saves it, loads it and applies it, so that later trainings with this config, and predictions of its
    model, compile nothing."""
    from ..kernels import cache_folder
    from ..kernels.announcing import announcer

    for component in [chosen.value for chosen in components or ComponentName]:
        before = announcer.compiled
        started = time.perf_counter()
        with TemporaryDirectory() as folder, quietly():
            path = Path(folder, "texts.spacy")
            nlp = spacy.blank("en")
            doc_bin(_annotated(nlp, text.split()) for text in _COMPILED_TEXTS).to_disk(path)
            paths = {"paths.train": str(path), "paths.dev": str(path)}
            nlp = init_nlp(load_config(CONFIGS / f"{component}.cfg", overrides=paths))
            train(nlp, Path(folder), stdout=io.StringIO(), stderr=io.StringIO())
            list(spacy.load(Path(folder, "model-best")).pipe(_COMPILED_TEXTS))
        compiled = announcer.compiled - before
        seconds = time.perf_counter() - started
        if compiled:
            msg.good(f"{component}: {counted(compiled, 'kernel')} compiled in {seconds:.0f} s")
        else:
            msg.good(f"{component}: everything is compiled already")
    msg.info(f"Kept in {cache_folder(__file__).parent}")


def _annotated(nlp: Language, words: list[str]) -> Doc:
    """Make a Doc with annotation for every component of spacy_crf: entities, spans, tags, and labels of the text."""
    named = [word[0].isupper() for word in words]
    doc = Doc(
        nlp.vocab,
        words=words,
        tags=["NAME" if is_name else "WORD" for is_name in named],
        ents=["O" if not now else "I-NAME" if before else "B-NAME" for before, now in zip([False, *named], named)],
    )
    doc.spans["sc"] = [*doc.ents, *(Span(doc, ent.start, ent.start + 1, label="FIRST") for ent in doc.ents)]
    doc.cats = {"NAMES": float(any(named)), "NONE": float(not any(named))}
    return doc
