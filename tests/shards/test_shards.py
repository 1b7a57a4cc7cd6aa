"""Training on shards: the same weights, bit by bit, whoever works on them and whoever dies."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import spacy
from spacy.tokens import DocBin, Span, SpanGroup
from spacy.training import Corpus
from spacy.util import registry
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.errors import announcements
from spacy_crf.models.table import Table
from spacy_crf.pipeline.corpora import doc_bin
from spacy_crf.shards import cut, mapped, shards, work
from spacy_crf.shards.mixing import LossTerms, SumTree, shares_of
from spacy_crf.shards.part_counts import TableSum
from spacy_crf.shards.shards import Shards
from spacy_crf.shards.work import _unpickled
from spacy_crf.whole_files import room_for, unfinished_name
from spacy_crf.workers import work_folder
from spacy_crf.workers.executors import Processes
from spacy_crf.workers.work_folder import MANIFEST
from tests.features.test_vectors import word_vectors
from tests.util import ner_examples, tag_examples

ROOT = Path(__file__).parents[2]


def span_examples(nlp):
    """Entities, and the first word of each."""
    found = ner_examples(nlp)
    for doc in (example.reference for example in found):
        doc.spans["sc"] = [*doc.ents, *(Span(doc, ent.start, ent.start + 1, label="FIRST") for ent in doc.ents)]
    return found


EXAMPLES = {
    "crf_ner": ner_examples,
    "crf_tagger": tag_examples,
    "semicrf_ner": ner_examples,
    "crf_spancat": span_examples,
}
LBFGS = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.1, "iterations_per_step": 4}
OWLQN = {**LBFGS, "l1": 0.05}
# Where it is not about features: those of the preset take ten times as long
TEMPLATES = {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[-1..1]", "shape[0]"]}
FEW_FEATURES = {"emissions": {"features": TEMPLATES}}


class Here:
    """An executor whose workers are all in this process.

    dies (int): Number of the task, of those of an iteration, whose worker dies once it has done it.
    """

    def __init__(self, workers, dies=None):
        self.workers, self._dies = workers, dies
        self.n_evaluated = 0

    @contextmanager
    def staff(self, make):
        self._make, self._works = make, {}
        yield self

    def run(self, tasks, told=None):
        for place, task in reversed([*enumerate(tasks)]):  # the last are ready first
            work = self._works.setdefault(place % self.workers, self._make())
            found = work(task, told)
            self.n_evaluated += task.verb in ("evaluate", "walk")
            if task.verb in ("evaluate", "walk") and self.n_evaluated == self._dies:
                found = self._make()(task, told)
            yield task, found


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(cut, "MOST_DOCS", 1)
    monkeypatch.setenv("SPACY_CRF_THREADS", "1")


def make(path, optimizer=LBFGS, factory="crf_ner", n=3, read=None, **config):
    """A pipeline that learns on shards, and its optimizer."""
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config={"model": FEW_FEATURES, **config})
    nlp.config["training"]["max_epochs"] = -1
    nlp.config["training"]["optimizer"] = dict(optimizer)
    registry.readers("tests.shards.reader", func=lambda: read or (lambda nlp: iter(EXAMPLES[factory](nlp))))
    block = {"corpus": {"@readers": "tests.shards.reader"}}
    if path is not None:
        block["shards"] = {"@misc": "spacy_crf.shards.v1", "n": n, "path": str(path)}
    nlp.config["initialize"]["components"] = {factory: block}
    return nlp, registry.resolve({"optimizer": optimizer})["optimizer"]


def by(monkeypatch, executor):
    monkeypatch.setattr(Shards, "staff", lambda self: executor)
    monkeypatch.setattr(announcements, "setLevel", lambda level: None)  # workers say less
    monkeypatch.setattr(shards, "default_threads", lambda: executor.workers)


def trained(nlp, sgd, steps=3, factory="crf_ner"):
    """The objectives of the steps, and the weights as the optimizer has them."""
    nlp.initialize(lambda: EXAMPLES[factory](nlp)[:1])
    losses = [nlp.update(EXAMPLES[factory](nlp)[:1], sgd=sgd)[factory] for _ in range(steps)]
    return losses, sgd._runs[factory].position.weights


def manifest_of(folder):
    return [json.loads(line) for line in (folder / MANIFEST).read_text().splitlines()]


# --------------------------------------------------------------------------------------------------------- the texts


def test_user_data_stays_with_its_text(tmp_path, monkeypatch):
    """And texts without any have none encoded, which took longer than all the rest."""
    monkeypatch.setattr(cut, "MOST_DOCS", 2)
    nlp = spacy.blank("en")
    corpus = ner_examples(nlp)
    assert len(corpus) > 2
    for number, example in enumerate(corpus[:2]):
        example.predicted.user_data["number"] = number
    pieces = cut.Pieces(tmp_path / "corpus")
    pieces.write(corpus)
    again = [example.predicted.user_data.get("number") for example in pieces.read(nlp.vocab, range(len(pieces)))]
    assert again == [0, 1] + [None] * (len(corpus) - 2)
    stored = DocBin().from_bytes(doc_bin(example.predicted for example in corpus).to_bytes())
    assert [data is not None for data in stored.user_data] == [True, True] + [False] * (len(corpus) - 2)


# -------------------------------------------------------------------------------------------------- the same weights


@pytest.mark.parametrize("factory", EXAMPLES)
@pytest.mark.parametrize("settings", [LBFGS, OWLQN], ids=["LBFGS", "OWLQN"])
def test_the_same_function_as_of_the_whole(factory, settings, tmp_path, monkeypatch):
    by(monkeypatch, Here(2))
    nlp, sgd = make(None, settings, factory, model={})
    losses, weights = trained(nlp, sgd, 1, factory)
    sharded, sgd = make(tmp_path, settings, factory, model={})
    found, others = trained(sharded, sgd, 1, factory)
    assert found == pytest.approx(losses, rel=1e-9)
    assert others == pytest.approx(weights, rel=1e-6, abs=1e-9)
    one, other = nlp.get_pipe(factory), sharded.get_pipe(factory)
    for features, same in zip(one.feature_stores, other.feature_stores):
        for name, table in features.tables.items():
            assert table.index.names() == same.tables[name].index.names()
            assert table.counts.tolist() == same.tables[name].counts.tolist()
            assert [*map(np.ndarray.tolist, table.fingerprint())] == [
                *map(np.ndarray.tolist, same.tables[name].fingerprint())
            ]
    doc = sharded(EXAMPLES[factory](sharded)[0].predicted.copy())
    assert [t.ent_type_ or t.tag_ for t in doc] == [
        t.ent_type_ or t.tag_ for t in nlp(EXAMPLES[factory](nlp)[0].predicted.copy())
    ]


@pytest.mark.parametrize("min_count,possible_states", [(2, False), (2, True), (1, True)])
def test_features_are_counted_as_in_one_pass(min_count, possible_states, tmp_path, monkeypatch):
    by(monkeypatch, Here(2))
    emissions = {"min_count": min_count, "possible_states": possible_states}
    both = []
    for path in (None, tmp_path):
        nlp, _ = make(path, model={"emissions": emissions})
        nlp.initialize(lambda nlp=nlp: ner_examples(nlp)[:1])
        both.append(nlp.get_pipe("crf_ner"))
    one, other = both
    assert one.sparse_features.states.index.names() == other.sparse_features.states.index.names()
    assert [*map(np.ndarray.tolist, one.sparse_features.states.fingerprint())] == [
        *map(np.ndarray.tolist, other.sparse_features.states.fingerprint())
    ]
    assert one.model.attrs["met"] == other.model.attrs["met"]
    assert np.array_equal(one.model.attrs["observed"], other.model.attrs["observed"])


def test_no_count_is_too_large():
    """Counts are as narrow as they may be, and no narrower."""
    known = TableSum(Table.empty(2))
    part = {
        "keys": np.array([7, 9], dtype=np.uint64),
        "counts": np.array([2**32 - 1, 1], dtype=np.uint32),
        "widths": np.ones(2, dtype=np.uint8),
        "columns": np.array([0, 1], dtype=np.uint8),
        "template_of": np.zeros(2, dtype=np.uint8),
        "n_parts": np.zeros(2, dtype=np.uint8),
        "parts": np.zeros(0, dtype=np.uint8),
        "names": np.frombuffer(json.dumps([["bias"], []]).encode("ascii"), dtype=np.uint8),
    }
    for _ in range(2):
        known.add(part)
    known.choose(1)
    for _ in range(2):
        known.add_names(part)
    assert known.freeze(None).counts.tolist() == [2**33 - 2, 2]


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_words_in_clusters_are_counted_as_in_one_pass(factory, tmp_path, monkeypatch, caplog):
    """Each once, whichever shards it is in; and told for the whole corpus, not by each worker for its shards."""
    by(monkeypatch, Here(2))
    table = tmp_path / "clusters.txt"
    table.write_text("0110\tParis\t1\n0111\tBerlin\t1\n10\tlives\t1\n", encoding="utf8")
    found = []
    templates = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "cluster[0]"]}
    config = {"model": {"emissions": {"features": templates}}}
    for path in (None, tmp_path / "shards"):
        nlp, _ = make(path, factory=factory, n=6, **config)
        nlp.config["initialize"]["components"][factory]["clusters"] = str(table)
        with caplog.at_level("INFO"):
            nlp.initialize(lambda nlp=nlp: ner_examples(nlp)[:1])
        stores = [store for store in nlp.get_pipe(factory).feature_stores if store.clusters]
        read = [features.clustered for features in stores]
        found.append([dict(zip(known.words.tolist(), known.have_cluster[:, 0].tolist())) for known in read])
    assert found[0] == found[1] and any({True, False} <= {*known.values()} for known in found[0])
    told = [record.getMessage() for record in caplog.records if "words of the training data" in record.getMessage()]
    assert len(told) == 2 and told[0] == told[1]
    assert "CRFW940" not in caplog.text


def resident(folder):
    """KB of files of a folder that are in memory."""
    of_file, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *values = line.split()
        if not key.endswith(":"):
            of_file = str(folder) in line
        elif key == "Rss:" and of_file:
            found += int(values[0])
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="tells what is in memory on Linux alone")
def test_who_has_many_shards_has_none_in_memory_but_the_one_it_is_at(tmp_path, monkeypatch):
    by(monkeypatch, Here(1))
    nlp, sgd = make(tmp_path)
    losses, _ = trained(nlp, sgd, 2)
    assert any(tmp_path.glob("shard-*")) and resident(tmp_path / "shard-") == 0
    alone = tmp_path / "alone"
    by(monkeypatch, Here(3))
    nlp, sgd = make(alone)
    assert trained(nlp, sgd, 2)[0] == losses
    assert resident(alone / "shard-") > 0  # who has one would read it again for nothing


def softened(nlp):
    """The examples, whose first entity a teacher is not sure of."""
    examples = ner_examples(nlp)
    doc = examples[0].reference
    ent = doc.ents[0]
    spans = [Span(doc, ent.start, ent.end, ent.label_), Span(doc, ent.start, ent.end, "GPE")]
    doc.spans["crf_soft"] = SpanGroup(doc, spans=spans, attrs={"scores": [0.7, 0.2]})
    doc.set_ents([], missing=[ent])
    return iter(examples)


RULES = {
    "@misc": "spacy_crf.constraints.v1",
    "in_training": True,
    "rules": [{"rule": "at_most", "label": "GPE", "n": 3}],
}


VECTORS = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "vector[0]"]}
HASHED = {
    "@architectures": "spacy_crf.LinearChain.v1",
    "emissions": {
        "@architectures": "spacy_crf.HashedEmissions.v1",
        "features": {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "shape[0]"]},
        "rows": 64,
    },
}
# Settings, what reads the texts, and whether shards are files
OTHERS = {
    "rules": ({"constraints": RULES}, None, False),
    "soft labels": ({"loss": {"@losses": "spacy_crf.SoftLabels.v1"}}, softened, True),
    "vectors": ({"model": {"emissions": {"features": VECTORS}}}, None, True),
    "hashed features": ({"model": HASHED}, None, True),
}


@pytest.mark.parametrize("config, read, in_files", OTHERS.values(), ids=OTHERS)
def test_what_is_not_counted_in_parts_or_held_by_files(config, read, in_files, tmp_path, monkeypatch):
    """The same function as of the whole, and no shard but that of its texts; a worker that dies changes nothing."""

    def made(path):
        nlp, sgd = make(path, read=read, **config)
        nlp.vocab.vectors = word_vectors()
        return nlp, sgd

    by(monkeypatch, Here(2))
    losses, _ = trained(*made(None), 2)
    found, weights = trained(*made(tmp_path / "one"), 2)
    assert found == pytest.approx(losses, rel=1e-6)
    assert any((tmp_path / "one").glob("shard-*")) == in_files
    by(monkeypatch, Here(2, dies=5))
    again, others = trained(*made(tmp_path / "other"), 2)
    assert (again, others.tobytes()) == (found, weights.tobytes())


def test_shards_need_a_reader_of_their_own(tmp_path):
    nlp, sgd = make(tmp_path)
    del nlp.config["initialize"]["components"]["crf_ner"]["corpus"]
    with pytest.raises(ValueError, match=r"CRF478.*crf_ner.*corpus"):
        trained(nlp, sgd)
    assert not any(tmp_path.iterdir())


def test_labels_are_those_of_the_texts_that_are_cut(tmp_path, monkeypatch):
    """Nobody reads the whole corpus once more to find them, but where it was stopped after it was cut."""
    by(monkeypatch, Here(2))
    read, whole = cut.Pieces.read, []

    def watched(pieces, vocab, numbers):
        whole.append(len(numbers) == len(pieces))
        return read(pieces, vocab, numbers)

    monkeypatch.setattr(cut.Pieces, "read", watched)
    nlp, sgd = make(tmp_path)
    losses, _ = trained(nlp, sgd, 1)
    assert whole and not any(whole)
    assert nlp.get_pipe("crf_ner").labels == ("GPE", "ORG", "PER")
    head, cut_entry, *_ = manifest_of(tmp_path)
    head["files"] = {"texts": [["texts", 1, 1]]}  # or they would be cut again
    monkeypatch.setattr(shards, "_head", lambda *of: head)
    (tmp_path / MANIFEST).write_text(f"{json.dumps(head)}\n{json.dumps(cut_entry)}\n")
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    nlp, sgd = make(tmp_path)
    assert trained(nlp, sgd, 1)[0] == losses
    assert nlp.get_pipe("crf_ner").labels == ("GPE", "ORG", "PER") and any(whole)


def test_weights_are_bitwise_the_same_whoever_works(tmp_path, monkeypatch):
    found = []
    for number, executor in enumerate([Here(1), Here(2), Here(4), Here(2, dies=7)]):
        with monkeypatch.context() as patched:
            by(patched, executor)
            found.append(trained(*make(tmp_path / str(number), n=5)))
    (losses, weights), *others = found
    assert losses[-1] < losses[0]
    for more, same in others:
        assert (more, same.tobytes()) == (losses, weights.tobytes())


def test_what_was_stopped_goes_on(tmp_path, monkeypatch):
    by(monkeypatch, Here(2))
    _, weights = trained(*make(tmp_path / "whole", n=5), steps=6)
    folder = tmp_path / "parts"
    trained(*make(folder, {**LBFGS, "max_iterations": 12}, n=5), steps=3)
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("[sfv]*")}
    assert (folder / "checkpoint").exists() and (folder / "shard-00004") in kept
    nlp, sgd = make(folder, n=5)
    trained(nlp, sgd, steps=3)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    run = sgd._runs["crf_ner"]
    assert run.iteration == 24
    assert run.signature == nlp.get_pipe("crf_ner").training.corpus.objective.signature
    assert run.position.weights.tobytes() == weights.tobytes()
    with pytest.raises(ValueError, match=r"CRF204"):
        trained(*make(folder, OWLQN, n=5), steps=1)


def test_what_was_counted_is_not_counted_again(tmp_path, monkeypatch, caplog):
    """Nor what was put together; but a shard whose file is damaged is."""
    by(monkeypatch, Here(2))
    _, expected = trained(*make(tmp_path / "whole", n=5))
    folder, counts = tmp_path / "parts", []
    monkeypatch.setattr(
        work, "count", lambda *args, count=work.count, **kwargs: counts.append(1) or count(*args, **kwargs)
    )
    for at, n_files in ((3, 3), (2, 4)):  # the tasks that are done when the main process ends
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            by(patched, Ending(2, at, dies=None))
            trained(*make(folder, n=5))
        assert len([*folder.glob("counted-*")]) == n_files
        damaged = folder / "counted-00004"
        damaged.write_bytes(damaged.read_bytes()[: 90 if at == 3 else None])
    assert len(counts) == 3 + 2
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        by(patched, Ending(2, 2, dies=None))  # when the first is prepared
        trained(*make(folder, n=5))
    assert len(counts) == 6 and not [*folder.glob("counted-*")]
    assert trained(*make(folder, n=5))[1].tobytes() == expected.tobytes()
    assert len(counts) == 6


# ------------------------------------------------------------------------------------------------- parameter mixing

PERCEPTRON = {"loss": {"@losses": "spacy_crf.Perceptron.v1"}}
ONLINE = {
    "perceptron": ({"@optimizers": "spacy_crf.AveragedPerceptron.v1"}, PERCEPTRON),
    "batch": ({"@optimizers": "spacy_crf.BatchPerceptron.v1"}, PERCEPTRON),
    "pa": ({"@optimizers": "spacy_crf.PassiveAggressive.v1"}, PERCEPTRON),
    "arow": ({"@optimizers": "spacy_crf.AROW.v1"}, PERCEPTRON),
    "sgd": ({"@optimizers": "spacy_crf.SGD.v1", "l2": 0.1}, {}),
    "sgd-l1": ({"@optimizers": "spacy_crf.SGD.v1", "l1": 0.01, "l2": 0.1}, {}),
    "adagrad": ({"@optimizers": "spacy_crf.AdaGrad.v1", "l1": 0.01, "l2": 0.1}, {}),
}


def walked(path, rule, steps=2, factory="crf_ner", n=3):
    """The objectives of steps of two epochs each, the weights of the model, and the averages if the rule has them."""
    optimizer, config = ONLINE[rule]
    nlp, sgd = make(path, {**optimizer, "epochs_per_step": 2}, factory, n, **config)
    nlp.initialize(lambda: EXAMPLES[factory](nlp)[:1])
    examples = EXAMPLES[factory](nlp)
    losses = [nlp.update(examples, sgd=sgd)[factory] for _ in range(steps)]
    pipe = nlp.get_pipe(factory)
    return losses, pipe.training.frame().weights(), [*map(np.ravel, (sgd.averages or {}).values())], sgd


@pytest.mark.parametrize("rule", ONLINE)
def test_a_single_shard_is_walked_through_as_a_corpus(rule, tmp_path, monkeypatch):
    """So what is averaged says all that the rule knows."""
    by(monkeypatch, Here(1))
    losses, weights, averages, _ = walked(None, rule)
    found, others, same, _ = walked(tmp_path, rule, n=1)
    assert found == pytest.approx(losses, rel=1e-6)
    assert others == pytest.approx(weights, rel=1e-5, abs=1e-6)
    assert len(same) == len(averages)
    for one, other in zip(averages, same):
        assert other == pytest.approx(one, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("rule", ["perceptron", "sgd-l1"])
def test_mixed_weights_are_bitwise_the_same_whoever_works(rule, tmp_path, monkeypatch):
    found = []
    for number, executor in enumerate([Here(1), Here(2), Here(3, dies=2)]):
        with monkeypatch.context() as patched:
            by(patched, executor)
            losses, weights, averages, _ = walked(tmp_path / str(number), rule)
            found.append((losses, weights.tobytes(), [array.tobytes() for array in averages]))
    assert found[0][0][-1] < found[0][0][0] or found[0][0][-1] == 0.0
    assert found[1:] == [found[0], found[0]]


@pytest.mark.parametrize("factory", ["crf_tagger", "semicrf_ner"])
def test_other_components_are_mixed(factory, tmp_path, monkeypatch):
    by(monkeypatch, Here(2))
    losses, weights, _, _ = walked(tmp_path, "perceptron", 4, factory)
    assert losses[-1] < losses[0] or losses[-1] == 0.0
    assert np.abs(weights).max() > 0.0


@pytest.mark.parametrize("rule", ["perceptron", "sgd-l1"])
def test_mixing_goes_on_where_it_was_stopped(rule, tmp_path, monkeypatch):
    by(monkeypatch, Here(2))
    monkeypatch.setattr(Shards.__init__, "__defaults__", (*Shards.__init__.__defaults__[:-2], 1, "uniform"))
    _, weights, averages, _ = walked(tmp_path / "whole", rule, 4)
    walked(tmp_path / "parts", rule, 2)
    _, others, same, sgd = walked(tmp_path / "parts", rule, 2)
    assert sgd.iterations_made("crf_ner") == 8
    assert others.tobytes() == weights.tobytes()
    assert [array.tobytes() for array in same] == [array.tobytes() for array in averages]


def test_rates_are_tried_with_the_share_of_a_shard_in_the_penalty(tmp_path, monkeypatch):
    """A shard that is half of a corpus is told the same by twice the penalty as a corpus of its texts by the penalty."""
    by(monkeypatch, Here(1))
    rates = []
    for n in (1, 2):
        rule = {"@optimizers": "spacy_crf.SGD.v1", "l2": 1.0 * n, "calibration_rate": 1.3}
        nlp, sgd = make(tmp_path / str(n), rule, n=n, read=lambda nlp, n=n: iter(n * ner_examples(nlp)))
        nlp.initialize(lambda nlp=nlp: ner_examples(nlp)[:1])
        nlp.update(ner_examples(nlp)[:1], sgd=sgd)
        rates.append(sgd._runs["crf_ner"].numbers["eta"])
    assert rates[0] == rates[1]


def test_shards_weigh_by_their_size():
    assert shares_of([3, 1, 0], "size") == [0.75, 0.25, 0.0]
    assert shares_of([3, 1, 0], "uniform") == [0.5, 0.5, 0.0]


def test_more_shards_than_texts_are_mixed(tmp_path, monkeypatch):
    by(monkeypatch, Here(2))
    losses, _, _, _ = walked(tmp_path, "perceptron", n=50)
    assert all(map(np.isfinite, losses))


# ----------------------------------------------------------------------------------------------------------- killed


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 13])
def test_sums_do_not_depend_on_who_is_first(n):
    random = np.random.default_rng(n)
    values = [random.normal(size=3) * 10.0 ** random.integers(-9, 9) for _ in range(n)]

    def total(bounds, order):
        tree = SumTree(n)
        parts = []
        for begin, end in pairwise(bounds):
            part = SumTree(n)
            for number in range(begin, end):
                gradient = values[number].copy()
                gradient.flags.writeable = number % 2 == 0  # as it comes from processes, and from Ray
                part.add((0, number), LossTerms(float(gradient[0]), 1, gradient))
            parts += part.left.items()
        for number in order(len(parts)):
            tree.add(*parts[number])
        return tree.total

    first = total([0, n], range)
    assert first.n_impossible == n
    assert first.gradient == pytest.approx(sum(values))
    for workers in range(1, n + 1):
        bounds = [number * n // workers for number in range(workers + 1)]
        again = total(bounds, random.permutation)
        assert (again.value, again.gradient.tobytes()) == (first.value, first.gradient.tobytes())


@contextmanager
def killing(opened, kill):
    """A staff of which one is killed when the first evaluation comes in.

    opened (ContextManager[Staff]), kill (Callable[[Staff], None])
    """
    with opened as staff:
        run, is_alive = staff.run, [True]

        def kills(tasks, told=None):
            tasks = list(tasks)
            for found in run(tasks, told):
                if is_alive and tasks[0].verb == "evaluate":
                    is_alive.pop()
                    kill(staff)
                yield found

        staff.run = kills
        yield staff


class Killing(Processes):
    killed = None

    def staff(self, make):
        return killing(super().staff(make), self._kill)

    def _kill(self, staff):
        self.killed = staff.processes[0]._process.pid
        os.kill(self.killed, signal.SIGKILL)


@pytest.mark.usefixtures("workers_start_early")
def test_processes_that_are_killed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        by(patched, Here(1))
        expected, weights = trained(*make(tmp_path))
    (tmp_path / "checkpoint").unlink()
    executor = Killing(2)
    by(monkeypatch, executor)
    found, others = trained(*make(tmp_path))
    assert executor.killed
    assert (found, others.tobytes()) == (expected, weights.tobytes())


def test_scripts_that_workers_cannot_import(tmp_path):
    """They import what starts them, so it must not start them again."""
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import partial\nfrom spacy_crf.workers.executors import Processes\n"
        "print([*Processes(1).run(partial(partial, abs), [-2])])\n"
    )
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert found.stderr.splitlines()[-1].startswith("ValueError: CRF738: A worker ended, with exit code 1")
    assert "if __name__ == '__main__':" in found.stderr.splitlines()[-1]
    assert found.stderr.count("An attempt has been made to start a new process") == 1  # nobody tries again


class Ending(Here):
    """at (int): Number of the task, among all, at which the main process ends."""

    def __init__(self, workers, at, dies):
        super().__init__(workers, dies)
        self._left = at

    def run(self, tasks, told=None):
        for found in super().run(tasks, told):
            self._left -= 1
            if not self._left:
                raise KeyboardInterrupt
            yield found


class FullDisk:
    """left (int): Files until there is no room."""

    def __init__(self, left):
        self._left, self._whole = left, mapped.whole

    def __call__(self, path):
        self._left -= 1
        return self._whole(path) if self._left else _no_room(path)


def test_whatever_ends_a_training_the_weights_are_the_same(tmp_path, monkeypatch):
    """The main process, the disk that is full, and a worker each time, at random: while shards are made, and while they are
    trained on."""
    settings, random = {**LBFGS, "max_iterations": 16}, np.random.default_rng(18)
    monkeypatch.setattr(shards.Shards.__init__, "__defaults__", (*Shards.__init__.__defaults__[:-2], 4, "size"))
    by(monkeypatch, Here(2))
    _, expected = trained(*make(tmp_path / "whole", settings), steps=5)
    n_ended, folder = 0, 0
    while n_ended < 15:
        places = random.integers(1, 60, size=3).tolist()
        is_disk = random.random() < 0.3
        with monkeypatch.context() as patched:
            by(patched, Ending(1 + places[2] % 3, 10_000 if is_disk else places[0], places[1]))
            if is_disk:
                patched.setattr(mapped, "whole", FullDisk(places[0] // 6))
            try:
                _, weights = trained(*make(tmp_path / str(folder), settings), steps=5)
            except (KeyboardInterrupt, ValueError) as error:
                assert isinstance(error, KeyboardInterrupt) or "CRF475" in str(error)
                n_ended += 1
                continue
        assert weights.tobytes() == expected.tobytes()
        folder += 1
    assert trained(*make(tmp_path / str(folder), settings), steps=5)[1].tobytes() == expected.tobytes()
    assert folder > 2


def test_the_command_goes_on_where_it_was_stopped(tmp_path, monkeypatch, caplog):
    by(monkeypatch, Here(2))
    nlp = spacy.blank("en")
    DocBin(docs=[example.reference for example in ner_examples(nlp)]).to_disk(tmp_path / "texts.spacy")
    paths = [f"--paths.{part}={tmp_path / 'texts.spacy'}" for part in ("train", "dev")]
    command = ["train", str(ROOT / "configs" / "crf_ner.cfg"), "--shards", "3", "-o", str(tmp_path / "out"), *paths]
    for n_iterations in (5, 9):
        options = [
            "--training.optimizer.max_iterations",
            str(n_iterations),
            "--training.optimizer.iterations_per_step",
            "4",
        ]
        found = CliRunner().invoke(app, [*command, *options])
        assert found.exit_code == 0, found.output
        if n_iterations == 5:
            corpus = (tmp_path / "out" / "shards" / "crf_ner" / "corpus").stat().st_mtime_ns
    assert (tmp_path / "out" / "shards" / "crf_ner" / "corpus").stat().st_mtime_ns == corpus
    assert "goes on at iteration 5" in caplog.text and "stopped after 9 iterations" in caplog.text
    loaded = spacy.load(tmp_path / "out" / "model-last")
    assert [ent.label_ for ent in loaded(ner_examples(nlp)[0].text).ents] == ["PER", "GPE"]
    DocBin(docs=[example.reference for example in ner_examples(nlp)[1:]]).to_disk(tmp_path / "texts.spacy")
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 1 and "CRF472" in found.output and "files" in found.output
    found = CliRunner().invoke(app, [*command, "--component", "ner"])
    assert found.exit_code == 1 and "CRF710" in found.output


# --------------------------------------------------------------------------------------------------------- bad input


def test_shards_of_something_else(tmp_path, monkeypatch):
    by(monkeypatch, Here(1))
    trained(*make(tmp_path / "shards"), steps=1)
    with pytest.raises(ValueError, match=r"CRF472.* other n: then 3, now 4"):
        trained(*make(tmp_path / "shards", n=4))
    with pytest.raises(ValueError, match=r"CRF472.*components.*crf_ner.*scheme.*BILUO.*BIO"):
        trained(*make(tmp_path / "shards", scheme="BIO"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"CRF472.*other files"):
        trained(*make(tmp_path / "other"))
    shard = tmp_path / "shards" / "shard-00001"
    mapped.write(shard, [1, mapped.read(shard)[1]])
    with pytest.raises(ValueError, match=r"CRF472.*shard-00001.*another training"):
        trained(*make(tmp_path / "shards"))
    shard.write_bytes(shard.read_bytes()[:90])
    with pytest.raises(ValueError, match=r"CRF472.*shard-00001"):
        trained(*make(tmp_path / "shards"))
    manifest = tmp_path / "shards" / MANIFEST
    manifest.write_text("{")
    with pytest.raises(ValueError, match=r"CRF472.*manifest\.jsonl"):
        trained(*make(tmp_path / "shards"))


def test_a_command_that_failed_leaves_nothing_that_stops_the_next_one(tmp_path, monkeypatch):
    """A mistyped path of the training texts once made the right command end in CRF472, and so did a kill while the first file of
    the folder was written."""
    by(monkeypatch, Here(1))
    (tmp_path / unfinished_name(MANIFEST)).write_bytes(b"{")
    for read in (Corpus(tmp_path / "mistyped.spacy"), lambda nlp: iter([*ner_examples(nlp)[:1], None])):
        with pytest.raises((OSError, ValueError, TypeError)):
            trained(*make(tmp_path, n=2, read=read), steps=1)
    cut_entry = ["cut", {"texts": 1, "tokens": 1, "check": 1}]
    (tmp_path / MANIFEST).write_text(json.dumps({"files": {}}) + "\n" + json.dumps(cut_entry))
    trained(*make(tmp_path), steps=1)
    with pytest.raises(ValueError, match=r"CRF472.*other n"):
        trained(*make(tmp_path, n=2))


def test_one_process_at_a_time(tmp_path, monkeypatch):
    """The lock is let go of by who is killed, and shared by trainings of one process."""
    by(monkeypatch, Here(1))
    holds = "import sys, time; from pathlib import Path; from spacy_crf.workers.work_folder import Lock;"
    holds += "lock = Lock(Path(sys.argv[1]) / 'lock'); print('locked', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", holds, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ValueError, match=rf"CRF736.*{other.pid} of .* works in .*{tmp_path.name}"):
            trained(*make(tmp_path), steps=1)
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    finally:
        other.kill()
        other.communicate()
    kept = make(tmp_path), make(tmp_path)
    losses, _ = trained(*kept[0], steps=1)
    assert trained(*kept[1], steps=1)[0] == losses
    assert (tmp_path / "lock").read_text().startswith(f"{os.getpid()} of ")


def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch):
    by(monkeypatch, Here(1))
    monkeypatch.setattr(work_folder, "_lock", _full)
    with pytest.raises(ValueError, match=r"CRF737.*No space left"):
        trained(*make(tmp_path))


def test_another_corpus_is_cut_anew(tmp_path, monkeypatch):
    """What can't be told by its files is told by its texts."""
    by(monkeypatch, Here(1))
    trained(*make(tmp_path), steps=1)
    known = manifest_of(tmp_path)
    nlp, sgd = make(tmp_path, read=lambda nlp: iter(ner_examples(nlp)[:-1]))
    with pytest.raises(ValueError, match=r"CRF472.*texts"):
        trained(nlp, sgd)
    assert manifest_of(tmp_path) == known


@pytest.mark.parametrize(
    "optimizer,config,reason",
    [({"@optimizers": "Adam.v1"}, {}, "gradients of batches")],
)
def test_what_no_shards_are_made_for(optimizer, config, reason, tmp_path):
    nlp, sgd = make(tmp_path, optimizer, **config)
    with pytest.raises(ValueError, match=f"CRF474.*{reason}"):
        trained(nlp, sgd)
    assert not any(tmp_path.iterdir())


def test_no_room(tmp_path, monkeypatch):
    by(monkeypatch, Here(1))
    write = mapped.np.ascontiguousarray
    with monkeypatch.context() as patch:
        patch.setattr(
            mapped.np, "ascontiguousarray", lambda array: _full() if array.dtype.kind == "f" else write(array)
        )
        with pytest.raises(ValueError, match=r"CRF475.*No space left"):
            trained(*make(tmp_path))
    assert not [*tmp_path.glob(".*")]
    losses, _ = trained(*make(tmp_path))
    assert losses[-1] < losses[0]


def _no_room(path):
    with room_for(path):
        _full()


def _full(*_):
    raise OSError(28, "No space left on device")


def test_what_workers_cannot_import(tmp_path, monkeypatch):
    by(monkeypatch, Here(1))
    nlp, sgd = make(tmp_path)
    nlp.get_pipe("crf_ner").scorer = lambda examples: {}
    with pytest.raises(ValueError, match=r"CRF473"):
        trained(nlp, sgd)
    with pytest.raises(ValueError, match=r"CRF473.*nobody_has_this"):
        _unpickled(b"cnobody_has_this\nthing\n.")


FUNCTION = """
def vowels(doc):
    return [[str(sum(letter in "aeiou" for letter in token.text))] for token in doc]

"""


@pytest.mark.usefixtures("workers_start_early")
@pytest.mark.parametrize("is_installed", [True, False])
def test_functions_that_workers_cannot_import(is_installed, tmp_path, monkeypatch):
    """Those in the file of --code go with the component; not so what another module has, which only we know here."""
    elsewhere = ModuleType("test_shards_elsewhere")
    exec(FUNCTION, vars(elsewhere))
    monkeypatch.setitem(sys.modules, elsewhere.__name__, elsewhere)
    code = FUNCTION if is_installed else f"from {elsewhere.__name__} import vowels\n"
    registered = f"import spacy\n{code}spacy.registry.misc('test_shards.vowels.v1', func=lambda: vowels)\n"
    (tmp_path / "code.py").write_text(registered)
    config = spacy.util.load_config(ROOT / "configs" / "crf_ner.cfg")
    functions = {"vowels": {"@misc": "test_shards.vowels.v1"}}
    features = {"@misc": "spacy_crf.features.v1", "templates": ["fn:vowels[0]"], "functions": functions}
    config["components"]["crf_ner"]["model"]["emissions"]["features"] = features
    config.to_disk(tmp_path / "config.cfg")
    docs = [example.reference for example in ner_examples(spacy.blank("en"))]
    DocBin(docs=docs).to_disk(tmp_path / "texts.spacy")
    paths = [f"--paths.{part}={tmp_path / 'texts.spacy'}" for part in ("train", "dev")]
    options = ["--shards", "2", "--workers", "1", "-o", str(tmp_path / "out"), "--code", str(tmp_path / "code.py")]
    found = CliRunner().invoke(app, ["train", str(tmp_path / "config.cfg"), *options, *paths])
    if is_installed:
        assert found.exit_code == 0, found.output
        return
    assert found.exit_code == 1 and "CRF473" in found.output and elsewhere.__name__ in found.output
    folder = tmp_path / "out" / "shards" / "crf_ner"  # what was done stays
    assert (folder / "corpus").exists() and not [*folder.glob("*.tmp")]


def test_settings():
    for settings, name in (
        ({"n": 0}, "n"),
        ({"mixing": "sum"}, "mixing"),
        ({"executor": "dask"}, "executor"),
        ({"address": "auto"}, "address"),
        ({"executor": "ray", "cores": 0}, "cores"),
        ({"cores": 2}, "cores"),
    ):
        with pytest.raises(ValueError, match=f"CRF020.*{name}"):
            Shards(**settings)
    assert Shards(n=2, workers=9).workers == 2
