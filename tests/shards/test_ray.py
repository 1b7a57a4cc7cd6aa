"""Ray as the executor, on a cluster of this machine. It runs in a process of its own: Ray leaves files open."""

import json
import subprocess
import sys

import pytest

from tests.pipeline.test_probabilities import trained

MOST_SECONDS = 480  # on two cores that do other things too; alone it takes a quarter of that

SCRIPT = """
import faulthandler, json, socket, subprocess, sys, time
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock
faulthandler.dump_traceback_later(int(sys.argv[4]), exit=True)  # where it hangs; the cluster ends with this process
import ray
from spacy_crf.workers.executors import Ray
from spacy_crf.workers import executors
from spacy_crf.shards import cut, shards
from tests.shards import test_shards
from tests.shards.test_annotate_parts import annotated, maker, records_of

folder, model, source = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
found = {}

def outcome(name, run):
    start = time.perf_counter()
    (folder / name).mkdir()
    try:
        found[name] = run(folder / name)
    except Exception as error:
        found[name] = [type(error).__name__, str(error)]
    print(name, round(time.perf_counter() - start, 1), "s", flush=True)

def by_command(path):
    options = ["--executor", "ray", "--workers", "1", "--address", ray.get_runtime_context().gcs_address]
    command = [sys.executable, "-m", "spacy", "crf", "annotate", model, source, "-o", str(path / "out"), *options]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return records_of(path / "out")

class Killing(Ray):
    def staff(self, make):
        staff = super().staff(make)
        return test_shards.killing(staff, lambda staff: ray.kill(staff._actors[0]))

def trained(path, **settings):
    cut.MOST_DOCS = 1
    nlp, sgd = test_shards.make(path)
    nlp.config["initialize"]["components"]["crf_ner"]["shards"].update(settings)
    losses, weights = test_shards.trained(nlp, sgd)
    return losses, weights.tobytes().hex()

def trained_by(executor, path):
    shards.Shards.staff, shards.default_threads = lambda self: executor, lambda: executor.workers
    return trained(path)

def other_version(path):
    with mock.patch.object(executors, "__version__", "0.0.1"):
        return list(Ray(1).run(partial(maker, path), [1]))

class Unknown:
    pass  # what makes those who do tasks, in a module that workers don't have

Unknown.__module__, elsewhere = "nobody_has_this", ModuleType("nobody_has_this")
elsewhere.Unknown = Unknown
sys.modules["nobody_has_this"] = elsewhere

def silent(path):
    with socket.create_server(("127.0.0.1", 0)) as server, mock.patch.object(executors, "_SECONDS_TO_ANSWER", 0.5):
        return list(Ray(1, "127.0.0.1:%d" % server.getsockname()[1]).run(partial(maker, path), [1]))

def all_in_one_cluster(path):
    # The cluster that an executor without an address starts; those that follow find it
    with Ray(2).staff(partial(maker, path)) as staff:
        done = sorted(staff.run(range(3)))
        del staff  # its workers hold all cores
        outcome("killed twice", lambda path: sorted(Ray(2).run(partial(maker, path, 2), range(8))))
        outcome("killed always", lambda path: list(Ray(2).run(partial(maker, path, 9), [3])))
        full = OSError(28, "No space", "there")
        outcome("raises", lambda path: list(Ray(2).run(partial(maker, path, error=full), range(8))))
        outcome("other version", other_version)
        outcome("unknown", lambda path: list(Ray(1).run(Unknown(), [1])))
        outcome("nothing", lambda path: list(Ray(2).run(partial(maker, path), [])))
        outcome("annotated", lambda path: (annotated(model, source, path / "out", Ray(2)), records_of(path / "out"))[1])
        outcome("annotated by address", by_command)
        whole = {"executor": "ray", "workers": 1, "cores": 2}  # as a machine of a larger cluster
        outcome("trained by a worker with two cores", lambda path: trained(path / "out", **whole))
        outcome("trained", lambda path: trained_by(Killing(2), path / "out"))
    return done

outcome("no answer", lambda path: list(Ray(1, "127.0.0.1:9").run(partial(maker, path), [1])))
outcome("silent", silent)
outcome("cluster of its own", all_in_one_cluster)
outcome("trained here", lambda path: trained_by(test_shards.Here(1), path / "out"))
(folder / "found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """What came of everything that is asked of the one cluster of this session."""
    pytest.importorskip("ray", reason="needs Ray")
    folder = tmp_path_factory.mktemp("ray")
    trained().to_disk(folder / "model")
    texts = [f"Ann Lee lives in New York {n} ." for n in range(40)]
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf8")
    arguments = [str(folder), str(folder / "model"), str(source), str(MOST_SECONDS)]
    told = folder / "told.txt"  # no pipe: what outlives the script could keep it open
    with told.open("w") as file:
        run = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], stdout=file, stderr=subprocess.STDOUT)
    if run.returncode:
        pytest.fail(f"Ray: not done within {MOST_SECONDS} s, or broken off:\n{told.read_text()[-4000:]}")
    return json.loads((folder / "found.json").read_text())


def test_tasks_are_done_whoever_dies(found):
    assert found["killed twice"] == [[n, 2 * n] for n in range(8)]
    assert found["cluster of its own"] == [[n, 2 * n] for n in range(3)]
    assert found["nothing"] == []


def test_what_cannot_be_done_is_told(found):
    assert found["raises"] == ["OSError", "[Errno 28] No space: 'there'"]
    assert "CRF780" in found["killed always"][1]
    assert "CRF782" in found["no answer"][1] and "127.0.0.1:9" in found["no answer"][1]
    assert "CRF782" in found["silent"][1] and "timed out" in found["silent"][1]
    assert "CRF783" in found["other version"][1] and "0.0.1" in found["other version"][1]
    assert "CRF739" in found["unknown"][1] and "nobody_has_this" in found["unknown"][1]


@pytest.mark.parametrize("name", ["annotated", "annotated by address"])
def test_archives_are_annotated(found, name):
    records = found[name]
    assert len(records) == 40 and all(record["spans"] for record in records)


@pytest.mark.parametrize("name", ["trained", "trained by a worker with two cores"])
def test_weights_are_bitwise_the_same_as_of_one_process(found, name):
    assert found[name] == found["trained here"]
