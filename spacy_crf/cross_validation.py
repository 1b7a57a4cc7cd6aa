"""Train on all annotated texts, with settings that cross-validation chooses (`race`): no annotation is set aside as a dev
set."""

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from itertools import chain, combinations, product
from pathlib import Path
from typing import Optional, Union

import numpy as np
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Example
from spacy.util import Config, load_model_from_config, registry

from . import checks
from .errors import Errors, announcements, counted, no_component
from .features.clusters import PACKAGE, has_packaged_clusters
from .folds import Folds, draw_folds
from .optimizers.lbfgs import LBFGS
from .pipeline.corpora import Corpus
from .pipeline.pipe import LearningPipe
from .pipeline.tokenizer import TOKENIZER, CharacterTokenizer
from .race import (
    OPTIMIZED,
    Candidate,
    Decoded,
    Fitted,
    Race,
    WordKnowledge,
    features_block,
    interval,
    lbfgs_block,
    make_trials,
    of_texts,
)
from .types import Settings

FOLDS = 5
L1 = (0.0, 0.05)
L2 = (0.1, 0.03)
PRESETS = ("spacy_crf.ner_features.v1", "spacy_crf.tagger_features.v1")
# Callbacks of `spacy train` that choose what is chosen here
CHOOSE_TOO = ("spacy_crf.fit_min_prob.v1", "spacy_crf.refit.v1")
CLUSTER_TEMPLATES = (
    "cluster[-2..2]",
    "cluster4[-1..1]",
    "cluster6[-1..1]",
    "cluster10[-1..1]",
    "cluster[-1]|cluster[0]",
    "cluster[0]|cluster[1]",
)
# By name, as of `fit`
NO_WORDS = {"none": WordKnowledge((), {})}
PACKAGED = {"clusters": WordKnowledge(CLUSTER_TEMPLATES, {"tables": PACKAGE})}


def fit(
    config: Config,
    read: Callable[[Language], Sequence[Example]],
    *,
    folds: int = FOLDS,
    l1: Sequence[float] = L1,
    l2: Sequence[float] = L2,
    words: Union[bool, Mapping[str, WordKnowledge]] = True,
    thresholds: bool = True,
    optimize: str = "f",
    calibrate: bool = True,
    seed: int = 0,
    on_fold: Callable[[], None] = lambda: None,
) -> tuple[Language, list[Fitted]]:
    """Train the components of a config on all texts, each with the settings that win the cross-validation. A tokenizer that
    learns is trained first, with the l1 and l2 that find the most words; `words`, `thresholds`, `optimize` and `calibrate` do not
    concern it.

    config (Config): A config for `spacy train`, interpolated. Its corpora are not read.
    read (Callable[[Language], Sequence[Example]]): Reads the annotated texts. Each text is held out as a whole.
    l1, l2 (Sequence[float]): The candidates are all pairs of these values, and the pair in the config.
    words (Union[bool, Mapping[str, WordKnowledge]]): Kinds of knowledge of words to try, alone and together, by name. True for
        clusters of spacy-lookups-data, if the package has the language. A kind that the config names is not tried.
    thresholds (bool): Whether to try thresholds of probabilities. They gain F1 by leaving out doubtful entities; where every
        token belongs to a field, such as in addresses, fewer texts are right as a whole.
    optimize (str): The score that chooses the settings: "f" for F1, or "texts" for the share of texts in which all entities are
        right and none is missing.
    calibrate (bool): Whether to divide the scores by the temperature whose probabilities fit the held-out texts best. The best
        path stays what it is.
    on_fold (Callable[[], None]): Called after each fold of each component, and after the component's last training.
    RETURNS (tuple[Language, list[Fitted]]): The pipeline, whose config has the chosen settings, and a report on the tokenizer, if
        it was trained, and on each component.
    RAISES (ValueError): CRF770 for fewer than two folds, or more folds than texts; CRF771 and CRF772 for components that cannot
        be fitted.
    """
    optimize = checks.one_of("fit", "optimize", optimize, OPTIMIZED)
    training = dict(config.get("training") or {})
    if (training.get("before_to_disk") or {}).get("@callbacks") in CHOOSE_TOO:
        config = Config({**config, "training": {**training, "before_to_disk": None}})
    nlp = load_model_from_config(config, auto_fill=True)
    tokenizer = _tokenizer_to_fit(nlp)
    names = _components(nlp, config)
    if not names and tokenizer is None:
        raise no_component("to fit", nlp.pipe_names)
    with nullcontext() if tokenizer is None else tokenizer.learning():
        examples = list(read(nlp))
    if not 2 <= folds <= len(examples):
        raise ValueError(Errors.CRF770.format(folds=folds, texts=counted(len(examples), "text")))
    # All components share the folds: else one would read what another, trained on the held-out texts, predicts there
    drawn = draw_folds([example.reference for example in examples], folds, seed)
    fitted = []
    if tokenizer is not None:
        fitted.append(_fit_tokenizer(nlp, tokenizer, examples, drawn, l1, l2, on_fold))
        examples = list(read(nlp))  # components read the tokens that it finds
    tokenizer_block = nlp.config["initialize"]["tokenizer"]
    if tokenizer is not None:
        # So that the tokenizer stays as it is where components are initialized
        nlp.config["initialize"]["tokenizer"] = {}
    for n, name in enumerate(names):
        # A component reads what components before it predict
        with nlp.select_pipes(disable=names[n + 1 :]):
            possible = _possible(nlp, name, words)
            race = Race(nlp, name, possible, thresholds, optimize, calibrate, drawn)
            pairs = _pairs(nlp, name, l1, l2)
            best = "none"
            if len(possible) > 1:
                # One pair compares what is known of words, since all pairs would take too long
                best = race.run([Candidate(key, *pairs[0]) for key in possible], examples, on_fold).words
            race.run([Candidate(best, *pair) for pair in pairs], examples, on_fold)
            fitted.append(race.finish(examples))
            on_fold()
    nlp.config["initialize"]["tokenizer"] = tokenizer_block
    return nlp, fitted


def refit(
    train: Union[str, Path],
    dev: Optional[Union[str, Path]] = None,
    folds: int = FOLDS,
    words: bool = True,
    optimize: str = "f",
    calibrate: bool = True,
    seed: int = 0,
) -> Callable[[Language], Language]:
    """Make a callback for ``[training.before_to_disk]`` (``spacy_crf.refit.v1``), which replaces the pipeline that `spacy train`
    saves by one that `fit` trains on the texts of train and dev. `fit` runs once, when `spacy train` first saves.

    train (Path): Texts, a .spacy file or a folder of them, such as ${paths.train}.
    dev (Path): More texts, such as ${paths.dev}; none by default.
    folds (int): Number of folds; each is held out once.
    words (bool): Whether to try word clusters from spacy-lookups-data.
    optimize (str): The score that chooses the settings: "f" for F1, or "texts" for the share of texts that are right as a whole.
    calibrate (bool): Whether to divide the scores by a temperature, see `fit`.
    seed (int): Random seed that draws the folds.
    """
    owner = "spacy_crf.refit.v1"
    folds = checks.count(owner, "folds", folds)
    words = checks.flag(owner, "words", words)
    optimize = checks.one_of(owner, "optimize", optimize, OPTIMIZED)
    calibrate = checks.flag(owner, "calibrate", calibrate)
    refitted: Optional[Language] = None

    def read(nlp: Language) -> list[Example]:
        paths = [path for path in (train, dev) if path is not None]
        return [example for path in paths for example in Corpus(Path(path))(nlp)]

    def replace(nlp: Language) -> Language:
        nonlocal refitted
        if refitted is None:
            config = nlp.config.interpolate()
            settings = {"folds": folds, "words": words, "optimize": optimize, "calibrate": calibrate, "seed": seed}
            refitted, fitted = fit(config, read, **settings)
            refitted.meta["performance"] = performance(refitted, fitted)
            for component in fitted:
                announcements.info(
                    "%s: saving %s, trained on all texts. %s", owner, component.name, component.expectation()
                )
        return refitted

    return replace


def _fit_tokenizer(
    nlp: Language,
    tokenizer: CharacterTokenizer,
    examples: list[Example],
    folds: Folds,
    l1: Sequence[float],
    l2: Sequence[float],
    on_fold: Callable[[], None],
) -> Fitted:
    """Train the tokenizer of a pipeline on all texts, with the pair of l1 and l2 that finds the most words of held-out texts.
    Sentences, whole texts and temperatures are not looked at.

    folds (Folds): Which texts are held out together. The other arguments are those of `fit`.
    """
    block = nlp.config["initialize"]["tokenizer"]
    defaults = signature(tokenizer.initialize).parameters
    in_config = [block.get(name, defaults[name].default) for name in ("l1", "l2")]
    n_folds = int(folds.fold_of.max()) + 1
    predicted: dict[Candidate, list[Example]] = {}  # in the order of the folds
    decoded = {}
    for pair in sorted({*product(l1, l2), (in_config[0], in_config[1])}):
        candidate = Candidate("none", *pair)
        settings = {**block, "l1": candidate.l1, "l2": candidate.l2}
        predicted[candidate] = []
        for fold in range(n_folds):
            others = [examples[n] for n in np.flatnonzero(folds.fold_of != fold)]
            tokenizer.initialize(lambda others=others: others, **settings)
            for n in np.flatnonzero(folds.fold_of == fold):
                reference = examples[n].reference
                predicted[candidate].append(Example(tokenizer(reference.text), reference))
            on_fold()
        counts = np.array([_word_counts(example) for example in predicted[candidate]], dtype=np.float64)
        decoded[candidate] = Decoded(counts, None, n_folds)
    trials = make_trials(decoded, decoded, folds, "f")
    best = trials[0].candidate
    block.update(l1=best.l1, l2=best.l2)
    # Components are initialized later, on the tokens that it finds
    with nlp.select_pipes(enable=[]):
        nlp.initialize(lambda: examples)
    best_counts = decoded[best].counts
    texts = np.argsort(folds.fold_of, kind="stable")  # [N] in the order of the folds
    groups = folds.group_of[texts]
    return Fitted(
        TOKENIZER,
        len(examples),
        trials[0],
        f=interval(best_counts, groups),
        whole_texts=interval(of_texts(best_counts), groups),
        trials=trials,
        held_out=[predicted[best][row] for row in np.argsort(texts)],
        suspects=[],
        together=folds.reason,
    )


def _word_counts(example: Example) -> tuple[int, int, int]:
    """How many words are annotated in a text, found, and found where they are annotated; white space is none."""
    gold, found = (
        {(token.idx, len(token)) for token in doc if not token.is_space}
        for doc in (example.reference, example.predicted)
    )
    return len(gold), len(found), len(gold & found)


def _tokenizer_to_fit(nlp: Language) -> Optional[CharacterTokenizer]:
    """The tokenizer of a pipeline, if it is to be trained; None for a tokenizer that does not learn, and for one that the config
    copies from another pipeline, as this function does."""
    if not isinstance(nlp.tokenizer, CharacterTokenizer):
        return None
    initialize = nlp.config.interpolate()["initialize"]
    if initialize["before_init"] and not initialize["tokenizer"]:
        copy_from_base_model = registry.resolve({"callback": initialize["before_init"]})["callback"]
        copy_from_base_model(nlp)
    return None if nlp.tokenizer.is_trained else nlp.tokenizer


def performance(nlp: Language, fitted: Iterable[Fitted]) -> Settings:
    """The scores of components on held-out texts, and their F1 and share of whole texts with intervals, for the meta.json of a
    pipeline."""
    scores: Settings = {}
    for component in fitted:
        scorer = nlp.tokenizer if component.name == TOKENIZER else nlp.get_pipe(component.name)
        scores.update(scorer.score(component.held_out))
        scores[f"{component.name}_cross_validation"] = {
            **component.f._asdict(),
            "whole_texts": component.whole_texts and component.whole_texts._asdict(),
            "texts": component.texts,
            "temperature": component.temperature,
        }
    return scores


def _components(nlp: Language, config: Config) -> list[str]:
    """Names of the components to fit: those of spacy_crf that are neither frozen nor sourced.

    RAISES (ValueError): CRF771 for a component that cannot be fitted, CRF772 for a foreign component that needs training.
    """
    training = registry.resolve(nlp.config.interpolate()["training"], schema=ConfigSchemaTraining)
    sourced = [name for name, block in config["components"].items() if "source" in block]
    names = []
    for name, pipe in nlp.pipeline:
        if name in (*training["frozen_components"], *sourced):
            continue
        if isinstance(pipe, LearningPipe):
            if not pipe.is_linear or not lbfgs_block(nlp, name) or not pipe.labelled:
                raise ValueError(Errors.CRF771.format(name=name))
            names.append(name)
        elif getattr(pipe, "is_trainable", False):
            raise ValueError(Errors.CRF772.format(name=name))
    return names


def _pairs(nlp: Language, name: str, l1: Sequence[float], l2: Sequence[float]) -> list[tuple[float, float]]:
    """All pairs of l1 and l2, and that of the config. For each l1 the greatest l2 is first: each training starts with the weights
    of the one before."""
    in_config = LBFGS(**{key: value for key, value in lbfgs_block(nlp, name).items() if key in ("l1", "l2")})
    pairs = {*product(l1, l2), (in_config.l1, in_config.l2)}
    return sorted(pairs, key=lambda pair: (pair[0], -pair[1]))


def _possible(nlp: Language, name: str, words: Union[bool, Mapping[str, WordKnowledge]]) -> dict[str, WordKnowledge]:
    """The knowledge of words that a component can use, by name: none of it, and each selection of kinds. A component can use the
    kinds for which the config has no setting, if templates can be added to its features.

    words (Union[bool, Mapping[str, WordKnowledge]]): Kinds of knowledge, see `fit`.
    """
    if features_block(nlp.config["components"][name]).get("@misc") not in PRESETS:
        return {**NO_WORDS}
    if isinstance(words, bool):
        words = PACKAGED if words and has_packaged_clusters(str(nlp.lang)) else {}
    initialize = nlp.config["initialize"]["components"].get(name) or {}
    of_config = [*nlp.config["initialize"].items(), *initialize.items(), *(initialize.get("words") or {}).items()]
    # `WordKnowledge.settings` calls clusters "tables"
    in_config = {"tables" if key == "clusters" else key for key, value in of_config if value is not None}
    kinds = {kind: known for kind, known in words.items() if not in_config & known.settings.keys()}
    possible = {**NO_WORDS}
    for n in range(len(kinds)):
        for names in combinations(kinds, n + 1):
            together = [kinds[kind] for kind in names]
            templates = chain.from_iterable(known.templates for known in together)
            settings = ChainMap(*(known.settings for known in together))
            possible[" and ".join(names)] = WordKnowledge([*templates], dict(settings))
    return possible
