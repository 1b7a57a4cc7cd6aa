"""The systems that `beside_others` compares. Training a system is one process, and tagging with it another; each prints a
line of JSON: ``python -m tests.benchmarks.beside_systems train|use SYSTEM FOLDER LANG``.

Imports stand inside the functions, so that the start and the memory of a system are those of what it needs.
"""

import json
import pickle
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Optional

Words = Sequence[list[str]]  # of each sentence
Tagger = Callable[[Words], list[list[str]]]
CRFSUITE_ITERATIONS, WAPITI_ITERATIONS = 150, 100


class Task(NamedTuple):
    """The texts that a system is trained on. A part is the words of each sentence, and their tags."""

    lang: str
    train: tuple[Words, Words]
    dev: tuple[Words, Words]  # empty where settings are cross-validated
    ner_seconds: float

    def sentences(self, part: str = "train") -> list:
        from .data import Sentence

        return [Sentence(words, None, tags) for words, tags in zip(*getattr(self, part))]


class System(NamedTuple):
    """train (Callable): Saves a model as `folder / "model"`; None where a package brings its model.
    load (Callable): A tagger from the model and the language."""

    load: Callable[[Path, str], Tagger]
    train: Optional[Callable[[Path, Task], None]] = None
    package: Optional[str] = None  # the module without which the system is left out


# ------------------------------------------------------------------------------------------------------------------ ours


def train_ours(folder: Path, task: Task, *, optimize: str) -> None:
    """Train the config that `init-config` writes: like `spacy train`, or like `crf fit` if there is no dev part."""
    from spacy.util import load_config

    from spacy_crf.cli.configs import NO_WORDS, make_config
    from spacy_crf.features.clusters import has_packaged_clusters

    recipe = "words" if optimize == "accuracy" and has_packaged_clusters(task.lang) else "fast"
    path = folder / "config.cfg"
    path.write_text(make_config("crf_ner", recipe, NO_WORDS, optimize, task.lang, "config.cfg"), encoding="utf8")
    if not task.dev[0]:
        from spacy_crf.cross_validation import fit

        from .data import make_examples

        config = load_config(path, interpolate=True)
        nlp, _ = fit(config, lambda nlp: make_examples(nlp.vocab, task.sentences()), words=False)
        nlp.to_disk(folder / "model")
        return
    from spacy.cli.train import train

    from .data import save_docbin

    files = {part: folder / f"{part}.spacy" for part in ("train", "dev")}
    for part, file in files.items():
        save_docbin(file, task.sentences(part))
    train(path, folder / "training", overrides={f"paths.{part}": str(file) for part, file in files.items()})
    (folder / "training" / "model-best").rename(folder / "model")


def load_pipeline(model: Path, lang: str) -> Tagger:
    import spacy
    from spacy.tokens import Doc

    nlp = spacy.load(model)

    def tag(sentences: Words) -> list[list[str]]:
        docs = nlp.pipe(Doc(nlp.vocab, words=words) for words in sentences)
        return [[f"{token.ent_iob_}-{token.ent_type_}" if token.ent_type_ else "O" for token in doc] for doc in docs]

    return tag


def train_ner(folder: Path, task: Task) -> None:
    """spaCy's ``ner`` for some seconds of CPU time."""
    import spacy
    from spacy.util import fix_random_seed, minibatch

    from .data import make_examples

    fix_random_seed(0)
    nlp = spacy.blank(task.lang)
    nlp.add_pipe("ner")
    examples = make_examples(nlp.vocab, task.sentences())
    optimizer = nlp.initialize(lambda: examples)
    while time.process_time() < task.ner_seconds:
        random.shuffle(examples)
        for batch in minibatch(examples, 32):
            nlp.update(batch, sgd=optimizer, drop=0.1)
            if time.process_time() > task.ner_seconds:
                break
    nlp.to_disk(folder / "model")


# -------------------------------------------------------------------------------------------------- programs for chains


def with_strong_features(lang: str) -> Callable[[list[str]], Any]:
    """The features of `rivals.strong_features`, of words."""
    import spacy
    from spacy.tokens import Doc

    from .rivals import strong_features

    vocab = spacy.blank(lang).vocab
    return lambda words: strong_features(Doc(vocab, words=words))


def train_crfsuite(folder: Path, task: Task) -> None:
    import spacy

    from .rivals import STRONG_PARAMS, CRFsuite, strong_features

    vocab = spacy.blank(task.lang).vocab
    from .data import make_doc

    rival = CRFsuite(strong_features, STRONG_PARAMS)
    rival.read((make_doc(vocab, sentence) for sentence in task.sentences()), task.train[1])
    rival.train(folder / "model", max_iterations=CRFSUITE_ITERATIONS)


def load_crfsuite(model: Path, lang: str) -> Tagger:
    import pycrfsuite

    features, tagger = with_strong_features(lang), pycrfsuite.Tagger()
    tagger.open(str(model))
    return lambda sentences: [tagger.tag(features(words)) for words in sentences]


def train_sklearn_crfsuite(folder: Path, task: Task) -> None:
    from sklearn_crfsuite import CRF

    from .rivals import STRONG_PARAMS

    features = with_strong_features(task.lang)
    settings = {"all_possible_transitions": True, "max_iterations": CRFSUITE_ITERATIONS}
    crf = CRF(algorithm="lbfgs", c1=STRONG_PARAMS["c1"], c2=STRONG_PARAMS["c2"], **settings)
    crf.fit([features(words) for words in task.train[0]], list(task.train[1]))
    (folder / "model").write_bytes(pickle.dumps(crf))


def load_sklearn_crfsuite(model: Path, lang: str) -> Tagger:
    crf, features = pickle.loads(model.read_bytes()), with_strong_features(lang)
    return lambda sentences: [list(tags) for tags in crf.predict([features(words) for words in sentences])]


# The strong features as columns and patterns
_AFFIXES = [f"{side}{n}" for side in ("prefix", "suffix") for n in range(1, 5)]
_COLUMNS = ["lower", "shape", "flags", "word", *_AFFIXES]
_WINDOW = [(name, (n,)) for name in _COLUMNS[:3] for n in range(-2, 3)]
_OWN = [(name, (0,)) for name in ("word", *_AFFIXES)]
_CONJOINED = [("lower", (-1, 0)), ("lower", (0, 1)), ("shape", (-1, 0, 1))]


def wapiti_patterns() -> str:
    lines = [
        f"u:{name}{offsets}=" + "/".join(f"%x[{offset},{_COLUMNS.index(name)}]" for offset in offsets)
        for name, offsets in (*_WINDOW, *_OWN, *_CONJOINED)
    ]
    return "\n".join([*(line.replace(" ", "") for line in lines), "b"])


def wapiti_rows(lang: str) -> Callable[[list[str]], list[str]]:
    """Columns between blanks for each word, of which Wapiti can't read other white space either."""
    import spacy
    from spacy.tokens import Doc

    vocab = spacy.blank(lang).vocab

    def rows(words: list[str]) -> list[str]:
        columns = []
        for token, word in zip(Doc(vocab, words=words), words):
            flags = f"{token.is_title:d}{token.is_upper:d}{token.is_digit:d}{'-' in word:d}"
            affixes = [word[:n] for n in range(1, 5)] + [word[-n:] for n in range(1, 5)]
            cells = [token.lower_, token.shape_, flags, word, *affixes]
            columns.append(" ".join("_".join(cell.split()) or "_" for cell in cells))
        return columns

    return rows


def train_wapiti(folder: Path, task: Task) -> None:
    from wapiti import Model

    from .rivals import STRONG_PARAMS

    # Wapiti halves the second norm. It would stop where five iterations leave the share of wrong tokens as it is: on tweets,
    # where most tokens are outside of entities, before it has found the first entity.
    settings = {"rho1": STRONG_PARAMS["c1"], "rho2": 2 * STRONG_PARAMS["c2"], "maxiter": WAPITI_ITERATIONS}
    settings["stopwin"] = WAPITI_ITERATIONS + 1
    model, rows = (
        Model(patterns=wapiti_patterns(), algo="l-bfgs", nthread=1, compact=True, **settings),
        wapiti_rows(task.lang),
    )
    for words, tags in zip(*task.train):
        model.add_training_sequence("\n".join(f"{row} {tag}" for row, tag in zip(rows(words), tags)))
    model.train()
    model.save(str(folder / "model"))


def load_wapiti(model: Path, lang: str) -> Tagger:
    from wapiti import Model

    loaded, rows = Model(model=str(model), nthread=1), wapiti_rows(lang)
    return lambda sentences: [loaded.label_sequence("\n".join(rows(words))).decode().split() for words in sentences]


# ---------------------------------------------------------------------------------------------------- tools for one task


def as_iob2(labels: Sequence[str]) -> list[str]:
    """Runs of one label as entities, as the addresses of the data set were made."""
    runs = [(label, len(list(run))) for label, run in groupby(labels)]
    return [f"{'I' if n else 'B'}-{label}" for label, length in runs for n in range(length)]


def load_usaddress(model: Path, lang: str) -> Tagger:
    from usaddress import TAGGER, tokens2features

    return lambda sentences: [as_iob2(TAGGER.tag(tokens2features(words))) for words in sentences]


def load_probablepeople(model: Path, lang: str) -> Tagger:
    from probablepeople import parse

    return lambda sentences: [[label for _, label in parse(" ".join(words))] for words in sentences]


def load_ingredient_parser(model: Path, lang: str) -> Tagger:
    """Names of ingredients: its labels are others than those of the data set."""
    from ingredient_parser import parse_ingredient

    return lambda sentences: [[name.text for name in parse_ingredient(" ".join(words)).name] for words in sentences]


SYSTEMS = {
    "ours": System(load_pipeline, partial(train_ours, optimize="efficiency")),
    "ours, accuracy": System(load_pipeline, partial(train_ours, optimize="accuracy")),
    "CRFsuite": System(load_crfsuite, train_crfsuite, "pycrfsuite"),
    "Wapiti": System(load_wapiti, train_wapiti, "wapiti"),
    "ner": System(load_pipeline, train_ner),
    "sklearn-crfsuite": System(load_sklearn_crfsuite, train_sklearn_crfsuite, "sklearn_crfsuite"),
    "usaddress": System(load_usaddress, package="usaddress"),
    "probablepeople": System(load_probablepeople, package="probablepeople"),
    "ingredient-parser": System(load_ingredient_parser, package="ingredient_parser"),
}


# ----------------------------------------------------------------------------------------------------------------- steps


def train(system: str, folder: Path) -> dict[str, float]:
    """Train a model as `folder / "task.json"` says. RETURNS (dict): CPU seconds of the process, and its peak memory."""
    from .measure import peak_mb, size_mb

    SYSTEMS[system].train(folder, Task(**json.loads((folder / "task.json").read_text(encoding="utf8"))))
    seconds = time.process_time()
    return {"train_seconds": seconds, "train_mb": peak_mb(), "model_mb": size_mb(folder / "model")}


def use(system: str, folder: Path, lang: str, *, least_seconds: float = 1.0) -> dict[str, float]:
    """Tag the sentences of `folder / "words.json"`, into `tags.json`.

    least_seconds (float): The sentences are tagged again and again for so long.
    RETURNS (dict): CPU seconds of the process up to its first answer, its peak memory, and tokens a CPU second.
    """
    words = json.loads((folder / "words.json").read_text(encoding="utf8"))
    tagger = SYSTEMS[system].load(folder / "model", lang)
    tagger(words[:1])
    start = time.process_time()
    passes = 0
    while not passes or time.process_time() < start + least_seconds:
        tags = tagger(words)
        passes += 1
    seconds = time.process_time() - start
    from .measure import peak_mb

    (folder / "tags.json").write_text(json.dumps(tags), encoding="utf8")
    rate = passes * sum(map(len, words)) / seconds
    return {"start_seconds": start, "use_mb": peak_mb(), "tokens_per_second": rate}


if __name__ == "__main__":
    step, name, place, language = sys.argv[1:]
    found = train(name, Path(place)) if step == "train" else use(name, Path(place), language)
    print(json.dumps(found))
