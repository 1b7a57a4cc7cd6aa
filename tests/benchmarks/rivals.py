"""The others: python-crfsuite with two feature sets, its tagger over spaCy Docs, and spaCy's own ``ner``."""

import functools
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pycrfsuite
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import fix_random_seed, minibatch

from .data import SETS, Sentence, make_doc, make_examples, read_sentences
from .measure import Result, Training, entity_f1, in_own_process, size_mb, token_accuracy

Features = list[list[str]]  # for each token its features
FeatureFunction = Callable[[Doc], Features]

# Settings of L-BFGS: with the features of the example, and with the strong set.
EXAMPLE_PARAMS = {"c1": 0.0, "c2": 1.0}
STRONG_PARAMS = {"c1": 0.05, "c2": 0.05, "feature.possible_transitions": True}


# The features of CRFsuite's chunking example: offsets whose words or tags stand together in one feature.
EXAMPLE_WORDS = [(-2,), (-1,), (0,), (1,), (2,), (-1, 0), (0, 1)]
EXAMPLE_TAGS = [(-2,), (-1,), (0,), (1,), (2,)]
EXAMPLE_TAGS += [(-2, -1), (-1, 0), (0, 1), (1, 2), (-2, -1, 0), (-1, 0, 1), (0, 1, 2)]


def example_features(doc: Doc) -> Features:
    """What CRFsuite's chunking example sees: templates that reach outside the sentence are left out."""
    columns = [("w", [token.text for token in doc], EXAMPLE_WORDS), ("t", [token.tag_ for token in doc], EXAMPLE_TAGS)]
    features: Features = [[] for _ in doc]
    for name, values, templates in columns:
        for offsets in templates:
            prefix = f"{name}{offsets}="
            for i in range(max(0, -offsets[0]), len(doc) - max(0, offsets[-1])):
                features[i].append(prefix + "|".join([values[i + offset] for offset in offsets]))
    if len(doc):
        features[0].append("__BOS__")
        features[-1].append("__EOS__")
    return features


def strong_features(doc: Doc) -> Features:
    """A set that does well on every corpus here, in the style of the sklearn-crfsuite tutorial.

    Windows of -2..2 on lower-cased words, shapes, flags and (if annotated) tags; word, prefixes and suffixes of the token
    itself; pairs of words and triples of shapes around it.
    """
    lower = [token.lower_ for token in doc]
    shape = [token.shape_ for token in doc]
    flags = [f"{token.is_title:d}{token.is_upper:d}{token.is_digit:d}{'-' in token.text:d}" for token in doc]
    window = {"lower": lower, "shape": shape, "flags": flags}
    if doc.has_annotation("TAG"):
        window["tag"] = [token.tag_ for token in doc]
    last = len(doc) - 1
    features: Features = []
    for i, token in enumerate(doc):
        word = token.text
        own = ["bias", f"word={word}"]
        for length in range(1, min(4, len(word)) + 1):
            own.append(f"prefix={word[:length]}")
            own.append(f"suffix={word[-length:]}")
        for offset in range(max(-2, -i), min(2, last - i) + 1):
            for name, values in window.items():
                own.append(f"{name}[{offset}]={values[i + offset]}")
        if i > 0:
            own.append(f"pair[-1]={lower[i - 1]}|{lower[i]}")
        else:
            own.append("BOS")
        if i < last:
            own.append(f"pair[0]={lower[i]}|{lower[i + 1]}")
        else:
            own.append("EOS")
        if 0 < i < last:
            own.append(f"shapes={shape[i - 1]}|{shape[i]}|{shape[i + 1]}")
        features.append(own)
    return features


class CRFsuite:
    """A trainer that keeps its data, so that several runs over the same sentences need the features only once."""

    def __init__(self, feature_function: FeatureFunction, params: dict[str, Any]):
        self.feature_function = feature_function
        self.params = params
        self.trainer = pycrfsuite.Trainer(verbose=False)

    def read(self, docs: Iterable[Doc], tags: Iterable[Sequence[str]]) -> "CRFsuite":
        for doc, doc_tags in zip(docs, tags, strict=True):
            self.trainer.append(self.feature_function(doc), doc_tags)
        return self

    def train(self, model_path: Path, **params: Any) -> Training:
        """Train from zero and save the model; params go on top of those given before."""
        self.trainer.logparser = type(self.trainer.logparser)()
        self.trainer.set_params({**self.params, **params})
        self.trainer.train(str(model_path))
        log = self.trainer.logparser
        passes = [iteration["linesearch_trials"] for iteration in log.iterations]
        return Training(
            features=log.featgen_num_features,
            iterations=len(log.iterations),
            objective=log.iterations[-1]["loss"],
            seconds=log.training_seconds,
            seconds_per_pass=statistics.median(i["time"] / n for i, n in zip(log.iterations, passes)),
            passes=sum(passes),
        )


class CRFsuiteTagger:
    """Tags for Docs with a Python feature function per token: what people have around CRFsuite today."""

    def __init__(self, feature_function: FeatureFunction, model_path: Path):
        self.feature_function = feature_function
        self.tagger = pycrfsuite.Tagger()
        self.tagger.open(str(model_path))

    def __call__(self, doc: Doc) -> list[str]:
        return self.tagger.tag(self.feature_function(doc)) if len(doc) else []


FEATURE_FUNCTIONS = {"example": (example_features, EXAMPLE_PARAMS), "strong": (strong_features, STRONG_PARAMS)}


def crfsuite_result(name: str, feature_set: str = "strong", *, fresh: bool = False, **params: Any) -> Result:
    """Train and test CRFsuite on one data set in a process of its own, or read what an earlier run has kept.

    name (str): A key of data.SETS.
    feature_set (str): A key of FEATURE_FUNCTIONS.
    fresh (bool): Whether to measure again even if the result is known.
    """
    _, default_params = FEATURE_FUNCTIONS[feature_set]
    settings = {"set": name, "features": feature_set, **default_params, **params}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    path = cache_folder() / f"crfsuite-{feature_set}-{name}-{digest}.json"
    if not path.is_file() or fresh:
        result, _, peak_mb = in_own_process(_crfsuite_result, name, feature_set, params)
        result = result._replace(peak_mb=peak_mb)
        fields = {**result._asdict(), "training": result.training._asdict()}
        path.write_text(json.dumps({"settings": settings, "result": fields}, indent=2), encoding="utf8")
    fields = json.loads(path.read_text(encoding="utf8"))["result"]
    return Result(**{**fields, "training": Training(**fields["training"])})


def cache_folder() -> Path:
    """Where results and models that take minutes are kept between runs: never inside the repository."""
    folder = Path(os.environ.get("SPACY_CRF_BENCHMARK_CACHE", Path(tempfile.gettempdir()) / "spacy_crf_benchmarks"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _crfsuite_result(name: str, feature_set: str, params: dict[str, Any]) -> Result:
    vocab = spacy.blank("en").vocab
    feature_function, default_params = FEATURE_FUNCTIONS[feature_set]
    sentences = read_sentences(name, "train")
    docs = (make_doc(vocab, sentence) for sentence in sentences)  # CRFsuite need not keep them in memory
    with tempfile.TemporaryDirectory() as folder:
        model_path = Path(folder) / "model.crfsuite"
        start = time.perf_counter()
        rival = CRFsuite(feature_function, {**default_params, **params})
        training = rival.read(docs, [sentence.tags for sentence in sentences]).train(model_path)
        train_seconds = time.perf_counter() - start
        del rival
        tagger = CRFsuiteTagger(feature_function, model_path)
        test = read_sentences(name, "test")
        test_docs = [make_doc(vocab, sentence) for sentence in test]
        start = time.perf_counter()
        predicted = [tagger(doc) for doc in test_docs]
        tokens_per_second = sum(map(len, test_docs)) / (time.perf_counter() - start)
        gold = [sentence.tags for sentence in test]
        return Result(
            f1=entity_f1(gold, predicted) if SETS[name].entities else None,
            accuracy=token_accuracy(gold, predicted),
            train_seconds=train_seconds,
            tokens_per_second=tokens_per_second,
            model_mb=size_mb(model_path),
            peak_mb=0.0,
            training=training,
        )


@functools.lru_cache(maxsize=2)
def spacy_ner(name: str, *, limit: int = 1000, updates: int = 20) -> Language:
    """spaCy's default CPU ``ner`` after a few updates: its speed does not depend on how good it is.

    RETURNS (Language): A pipeline with the tokenizer and ``ner``.
    """
    fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe("ner")
    sentences: Sequence[Sentence] = read_sentences(name, "train", limit=limit)
    examples = make_examples(nlp.vocab, sentences)
    optimizer = nlp.initialize(lambda: examples)
    for batch, _ in zip(minibatch(examples, size=50), range(updates)):
        nlp.update(batch, sgd=optimizer)
    return nlp
