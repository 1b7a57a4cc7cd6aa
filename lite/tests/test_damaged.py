"""Damaged and hostile exports are refused by LiteError, or answer: no other error, no minutes, no gigabytes."""

import copy
import gzip
import io
import json
import random
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import spacy_crf_lite as lite

resource = pytest.importorskip("resource")
HERE = Path(__file__).parent
NAMES = ["set", "segments", "sentencizer", "characters"]
VALUES = [
    None,
    -1,
    0,
    3,
    10**18,
    10**30,
    float("nan"),
    float("inf"),
    -1e308,
    True,
    "",
    "x",
    [],
    {},
    [[]],
    [None],
    "é\ud800",
]
N_MUTATED = 1000
TEXTS = ["Ann Lee left Paris. New York!", "x"]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def read(name):
    return json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))


def places(content, path=()):
    """The places of values, of long lists only some."""
    if isinstance(content, dict):
        items = list(content.items())
    elif isinstance(content, list):
        items = list(enumerate(content))[:3]
    else:
        return
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(content, all_places, rng):
    """A copy of a content in which one to three values are other ones, are missing, or stand elsewhere."""
    content = copy.deepcopy(content)
    for _ in range(rng.randint(1, 3)):
        *folders, last = rng.choice(all_places)
        inner = content
        try:
            for folder in folders:
                inner = inner[folder]
            kind = rng.randrange(4)
            if kind == 0:
                del inner[last]
            elif kind == 1:
                inner[last] = copy.deepcopy(
                    inner[rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))]
                )
            else:
                inner[last] = rng.choice(VALUES)
        except (LookupError, TypeError):  # an earlier mutation has removed the place
            continue
    return content


def use(path):
    """Load an export and parse texts. RETURNS (bool): Whether it is refused."""
    try:
        parse = lite.load(path)
        parsed = parse.batch(TEXTS if parse.columns == ["orth"] else [[["Ann"] * len(parse.columns)]])
    except lite.LiteError:
        return True
    json.dumps([text.to_json() for text in parsed])
    return False


def test_mutated_exports_are_refused_or_answer(tmp_path):
    rng = random.Random(5)
    path = tmp_path / "model.json"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    n_refused = 0
    for name in NAMES:
        content = read(name)
        # Patterns and exceptions have tests of their own, and are most of the file
        rules = content["tokenizer"].get("language_rules", content["tokenizer"])
        del rules["exceptions"][20:]
        all_places = list(places(content))
        for _ in range(N_MUTATED // len(NAMES)):
            path.write_text(json.dumps(mutated(content, all_places, rng)), encoding="utf8", errors="surrogatepass")
            begin = time.process_time()
            n_refused += use(path)
            assert time.process_time() - begin < 10
    assert n_refused > N_MUTATED // 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


@pytest.mark.parametrize("name", NAMES)
def test_other_bytes_are_refused_or_answer(name, tmp_path):
    text = gzip.decompress((HERE / f"{name}.json.gz").read_bytes())
    rng = random.Random(0)
    path = tmp_path / "model.json"
    for _ in range(20):
        place = rng.randrange(len(text))
        character = bytes([rng.randrange(32, 127)])
        path.write_bytes(text[:place] + character + text[place + rng.randrange(2) :])
        use(path)


def test_bombs_are_refused(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(gzip.compress(b"[" + b"0," * (1 << 27)))  # 256 MB
    assert use(path)
    path.write_bytes(b"[" * 10**6)
    assert use(path)
    file = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("content.npy", header.getvalue() + bytes(300 << 20))
    path.write_bytes(file.getvalue())
    assert use(path)
    content = read("set")
    states = content["components"][0]["chains"][0]["states"]
    for key, value in (("tag_of", 0), ("first", 0.0), ("last", 0.0)):
        states[key] = [value] * 100_000  # a matrix of 80 GB
    path.write_text(json.dumps(content))
    assert use(path)
