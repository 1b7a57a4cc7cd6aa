"""Saved arrays and numbers by which kernels index, changed in every way that a damaged or crafted file can have them: each reader
refuses them with a code, or what it reads can be used. Nothing ends the process, and nothing is a raw KeyError."""

import copy
import os
import random
import re
import signal
import sys

import numpy as np
import pytest
import spacy
import srsly

from spacy_crf import lite
from spacy_crf.errors import announcements
from spacy_crf.losses.clamped import LogLikelihood, Perceptron
from spacy_crf.migrate.lite import export_lite, write_lite
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.perceptron import AveragedPerceptron
from spacy_crf.optimizers.sgd import SGD, AdaGrad
from spacy_crf.shards import cut, mapped
from spacy_crf.shards.shards import Shards
from spacy_crf.shards.work import ShardTask
from tests.optimizers.test_online import make_pipe
from tests.shards.test_shards import Here, trained
from tests.shards.test_shards import make as make_shards
from tests.util import ner_examples

CODE = re.compile(r"\bCRF\d{3}\b")
CASES = 60  # of each file
SECONDS = 120  # that the use of a case may take


def places(tree, path=()):
    """The ways to all values in a tree of lists and dicts."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def crafted(value):
    """Other things in the place of a value, by name; None removes it."""
    found = {"missing": None, "another type": lambda: "x", "nothing": lambda: None, "a table": lambda: {"x": 1}}
    if isinstance(value, np.ndarray):
        found["cut off"] = lambda: value[:-1]
        found["empty"] = lambda: value[:0]
        found["doubled"] = lambda: np.concatenate([value, value])
        found["another shape"] = lambda: value[np.newaxis]
        found["another number type"] = lambda: value.astype(np.float64 if value.dtype.kind in "iu" else np.float16)
        if value.dtype.kind in "iu":
            found["-1"] = lambda: np.full_like(value, np.iinfo(value.dtype).max if value.dtype.kind == "u" else -1)
            found["huge"] = lambda: np.full_like(value, np.iinfo(value.dtype).max // 2)
            is_last = np.arange(value.size).reshape(value.shape) == value.size - 1
            found["one other number"] = lambda: np.where(is_last, 120, value).astype(value.dtype)
            found["backwards"] = lambda: value[::-1].copy()
    elif isinstance(value, (bool, int, float)):
        found.update({str(other): lambda other=other: other for other in (-1, 2**62, 1e300, float("nan"))})
    elif isinstance(value, (list, bytes, str)):
        found["cut off"] = lambda: value[:-1]
        found["doubled"] = lambda: value + value
    return found


def variants(tree):
    """All trees with one value changed, and what was changed."""
    for path in places(tree):
        value = tree
        for key in path:
            value = value[key]
        for name, make in crafted(value).items():
            other = copy.deepcopy(tree)
            place = other
            for key in path[:-1]:
                place = place[key]
            if make is not None:
                place[path[-1]] = make()
            else:
                del place[path[-1]]
            yield f"{'/'.join(map(str, path))}: {name}", other


def problems_of(cases, use):
    """Use each case in a forked process. RETURNS (list[str]): What went wrong: signals, and errors without a code.

    cases: Pairs of a name and data. use (Callable): Uses the data, in place of the process itself.
    """
    found, cases, begin = [], list(cases), 0
    while begin < len(cases):  # a process that is ended by a signal leaves the cases behind it to the next one
        reader, writer = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.close(reader)
            for number in range(begin, len(cases)):
                told = f"{number}\t"
                signal.alarm(SECONDS)
                try:
                    use(cases[number][1])
                except ValueError as error:
                    told += "" if CODE.search(str(error)) else f"{type(error).__name__}: {error}"
                except BaseException as error:
                    told += f"{type(error).__name__}: {error}"
                os.write(writer, f"{told}".replace("\n", " ").encode()[:2000] + b"\n")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, encoding="utf8", errors="replace") as file:
            told = [line.rstrip("\n").split("\t", 1) for line in file]
        _, status = os.waitpid(child, 0)
        found += [f"{cases[int(number)][0]}: {problem}" for number, problem in told if problem]
        begin += len(told)
        if os.WIFSIGNALED(status):
            found.append(f"{cases[begin][0]}: {signal.Signals(os.WTERMSIG(status)).name}")
            begin += 1
    return found


# --------------------------------------------------------------------------------------------- the state of optimizers


OPTIMIZERS = {
    LBFGS: LogLikelihood,
    AveragedPerceptron: Perceptron,
    SGD: LogLikelihood,
    AdaGrad: LogLikelihood,
}


@pytest.mark.parametrize("make, loss", OPTIMIZERS.items())
def test_a_crafted_state_of_an_optimizer_is_refused_or_can_be_used(make, loss):
    """Kernels indexed arrays of slots by features of the corpus, whatever their length, and followed arcs whatever they were."""
    nlp, _, examples = make_pipe(loss())
    optimizer = make()
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    data = optimizer.to_bytes()

    def use(data):
        nlp.update(examples, sgd=make().from_bytes(data))

    use(data)
    cases = [(name, srsly.msgpack_dumps(tree)) for name, tree in variants(srsly.msgpack_loads(data))]
    cases = random.Random(0).sample(cases, min(CASES, len(cases)))
    cases += [("cut off", data[:-1]), ("empty", b""), ("another file", b"\xc1\xff")]
    assert problems_of(cases, use) == []


# ------------------------------------------------------------------------------------------------------- files of shards


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_a_crafted_file_of_a_shard_is_refused_or_can_be_used(factory, tmp_path, monkeypatch):
    """Only the beginning of a file had a checksum: a changed bit in an array ended the process of a worker, or nobody noticed."""
    made = []

    class Noting(Here):
        def staff(self, make):
            made.append(make)
            return super().staff(make)

    monkeypatch.setattr(Shards, "staff", lambda self: Noting(1))
    monkeypatch.setattr(
        announcements, "setLevel", lambda level: None
    )  # workers say less, and this one is the test's process
    monkeypatch.setattr(cut, "MOST_DOCS", 1)
    monkeypatch.setenv("SPACY_CRF_THREADS", "1")
    trained(*make_shards(tmp_path, factory=factory), steps=1, factory=factory)
    work, path = made[-1](), tmp_path / "shard-00001"
    weights = np.zeros(int(mapped.read(tmp_path / "variables")[0].sum()))

    def evaluate(data):
        if isinstance(data, bytes):
            path.write_bytes(data)
        else:
            mapped.write(path, data)
        fresh = copy.copy(work)
        fresh._shards, fresh._files = {}, {}
        return fresh(ShardTask("evaluate", 1, 2), weights)

    octets, tree = path.read_bytes(), copy.deepcopy(mapped.read(path))
    evaluate(tree)
    assert path.read_bytes() == octets
    cases = random.Random(0).sample([*variants(tree)], CASES)
    assert problems_of(cases, evaluate) == []
    for damaged in (
        octets[:-1],
        octets[: len(octets) // 2],
        b"",
        octets[:-70] + bytes([octets[-70] ^ 1]) + octets[-69:],
    ):
        with pytest.raises(ValueError, match=r"CRF472.*shard-00001.*damaged"):
            evaluate(damaged)


def test_damaged_texts_of_shards_are_named(tmp_path):
    """zlib and msgpack raised errors of many kinds, without the name of the file."""
    nlp, pieces = spacy.blank("en"), cut.Pieces(tmp_path / "corpus")
    pieces.write(ner_examples(nlp))
    octets, index = (tmp_path / "corpus").read_bytes(), mapped.read(tmp_path / "corpus.index")
    assert [*pieces.read(nlp.vocab, range(len(pieces)))]
    (tmp_path / "corpus").write_bytes(octets[: len(octets) // 2])
    with pytest.raises(ValueError, match=r"CRF472.*corpus.*damaged"):
        [*pieces.read(nlp.vocab, range(len(pieces)))]
    (tmp_path / "corpus").write_bytes(octets)
    for crafted_index in (index - 10**9, index[:, :3], index.astype(np.float64), [1]):
        mapped.write(tmp_path / "corpus.index", crafted_index)
        with pytest.raises(ValueError, match=r"CRF472.*corpus.*damaged"):
            [*pieces.read(nlp.vocab, range(1))]


# ---------------------------------------------------------------------------------------------------------- exports


def test_a_crafted_export_is_refused_or_can_be_used(tmp_path):
    """Templates that read tokens 10^18 places away never ended; clusters without a path were found when a word was met."""
    nlp = spacy.blank("en")
    features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "lower[-1]|lower[0]", "cluster4[0]"]}
    pipe = nlp.add_pipe("crf_ner", config={"model": {"emissions": {"features": features}}})
    examples = ner_examples(nlp)
    (tmp_path / "clusters.txt").write_text("00\tAnn\t2\n01\tthe\t9\n")
    pipe.initialize(lambda: examples, nlp=nlp, clusters=tmp_path / "clusters.txt")
    nlp.update(examples, sgd=LBFGS())
    content, file = export_lite(nlp), tmp_path / "export.npz"
    texts = [[token.text for token in example.reference] for example in examples]

    def use(content):
        try:
            write_lite(content, file, "npz")
        except (TypeError, ValueError, AttributeError):  # what no export can hold
            return
        try:
            lite.load(file).batch(texts)
        except lite.LiteError as error:
            raise ValueError("CRF000") from error

    cases = [*variants(content)]
    wanted = [
        case for case in cases if re.search(r"parts/0/1: 4611|clusters//numbers: (-1|huge)|readers/0: missing", case[0])
    ]
    assert len(wanted) > 3
    assert problems_of(wanted + random.Random(0).sample(cases, CASES), use) == []
