"""Ray as the executor, on a cluster of this machine. It runs in a process of its own: Ray leaves files open."""

import json
import subprocess
import sys

import pytest

from .test_probabilities import trained

pytestmark = pytest.mark.issue(18)

SCRIPT = """
import json, sys
from functools import partial
from pathlib import Path
import ray
from spacy_crf.distributed.executors import Ray
from spacy_crf.distributed import cut, shards
from tests import test_shards
from tests.test_annotate_parts import annotated, maker, records_of

folder, model, source = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
found = {}

def outcome(name, run):
    (folder / name).mkdir()
    try:
        found[name] = run(folder / name)
    except Exception as error:
        found[name] = [type(error).__name__, str(error)]

outcome("no answer", lambda path: list(Ray(1, "127.0.0.1:9").run(partial(maker, path), [1])))
outcome("cluster of its own", lambda path: sorted(Ray(1).run(partial(maker, path), range(3))))
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
outcome("killed twice", lambda path: sorted(Ray(2).run(partial(maker, path, 2), range(8))))
outcome("killed always", lambda path: list(Ray(2).run(partial(maker, path, 9), [3])))
outcome("raises", lambda path: list(Ray(2).run(partial(maker, path, error=OSError(28, "No space", "there")), range(8))))
outcome("nothing", lambda path: list(Ray(2).run(partial(maker, path), [])))
outcome("annotated", lambda path: annotated(model, source, path / "out", Ray(2)).texts)

class Killing(Ray):
    def staff(self, make):
        staff = super().staff(make)
        return test_shards.killing(staff, lambda staff: ray.kill(staff._actors[0]))

def trained(path, executor):
    cut._DOCS = 1
    shards.Shards.staff, shards.default_threads = lambda self: executor, lambda: executor.workers
    losses, weights = test_shards.trained(*test_shards.make(path))
    return losses, weights.tobytes().hex()

outcome("trained here", lambda path: trained(path / "out", test_shards.Here(1)))
outcome("trained", lambda path: trained(path / "out", Killing(2)))
found["records"] = records_of(folder / "annotated" / "out")
(folder / "found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("ray", reason="needs Ray")
    folder = tmp_path_factory.mktemp("ray")
    trained().to_disk(folder / "model")
    texts = [f"Ann Lee lives in New York {n} ." for n in range(40)]
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf8")
    command = [sys.executable, "-c", SCRIPT, str(folder), str(folder / "model"), str(source)]
    subprocess.run(command, check=True)
    return json.loads((folder / "found.json").read_text())


def test_tasks_are_done_whoever_dies(found):
    assert found["killed twice"] == [[n, 2 * n] for n in range(8)]
    assert found["cluster of its own"] == [[n, 2 * n] for n in range(3)]
    assert found["nothing"] == []


def test_what_cannot_be_done_is_told(found):
    assert found["raises"] == ["OSError", "[Errno 28] No space: 'there'"]
    assert "CRF780" in found["killed always"][1]
    assert "CRF782" in found["no answer"][1] and "127.0.0.1:9" in found["no answer"][1]


def test_archives_are_annotated(found):
    assert found["annotated"] == 40 == len(found["records"])
    assert all(record["spans"] for record in found["records"])


def test_weights_are_bitwise_the_same_as_of_one_process(found):
    assert found["trained"] == found["trained here"]
