"""Files with a right checksum and wrong contents: they are refused with a code, or load and predict."""

import copy
import random
import zlib

import numpy as np
import pytest
import spacy
import srsly
from spacy.util import registry

from spacy_crf import whole_files
from spacy_crf.pipeline import saving
from tests.features.test_vectors import floret_vectors, word_vectors
from tests.util import ner_examples, plain, tag_examples

RUNS, CASES = 10, 30
_NEURAL = {"@architectures": "spacy.HashEmbedCNN.v2", "pretrained_vectors": None, "width": 8, "depth": 1}
_NEURAL |= {"embed_size": 20, "window_size": 1, "maxout_pieces": 2, "subword_features": True}
_WORDS = {
    "@misc": "spacy_crf.features.v1",
    "templates": ["lower[0]", "bias", "in:names[0]", "cluster4[0]", "vector[0]"],
}
_HASHED = {"@architectures": "spacy_crf.HashedEmissions.v1", "rows": 64}
_SPANS = {"extra": ["seg.near:names", "seg.matches:x"], "patterns": {"x": [{"IS_TITLE": True}]}}
_RULES = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "*", "n": 3}]}
_CHAIN = {"@architectures": "spacy_crf.LinearChain.v1"}
CONFIGS = {
    "words": ("crf_ner", {"model": {"emissions": {"features": _WORDS}}, "constraints": _RULES, "confidence": True}),
    "pairs": ("crf_ner", {"model": {"emissions": {"features": {**_WORDS, "transitions": ["lower[0]"]}}}}),
    "hashed": ("crf_ner", {"model": {**_CHAIN, "emissions": {**_HASHED, "features": {**_WORDS, "transitions": []}}}}),
    "neural": (
        "crf_ner",
        {"model": {"emissions": None, "tok2vec": _NEURAL}},
    ),
    "tags": ("crf_tagger", {"model": {"emissions": {"features": _WORDS}}, "constraints": _RULES}),
    "segments": ("semicrf_ner", {"model": {"emissions": {"features": _WORDS}, "segments": {"features": _SPANS}}}),
}


def _make(name):
    factory, config = CONFIGS[name]
    nlp = spacy.blank("en")
    return nlp, nlp.add_pipe(factory, config=copy.deepcopy(config))


@pytest.fixture(scope="module", params=CONFIGS)
def trained(request, tmp_path_factory):
    """The name of a config, and the file of a component trained with it."""
    nlp, pipe = _make(request.param)
    names = tmp_path_factory.mktemp("names") / "names.txt"
    names.write_text("Ann Lee\nNew York City\n", encoding="utf8")
    examples = tag_examples(nlp) if pipe.name == "crf_tagger" else ner_examples(nlp)
    clusters = names.with_name("clusters.txt")
    clusters.write_text("00\tAnn\t2\n00\tBob\t1\n01\tthe\t9\n", encoding="utf8")
    nlp.vocab.vectors = floret_vectors() if request.param == "hashed" else word_vectors()
    lists = {} if request.param == "neural" else {"gazetteers": {"names": names}, "clusters": clusters}
    pipe.initialize(lambda: examples, nlp=nlp, **lists)
    optimizer = "Adam.v1" if request.param == "neural" else "spacy_crf.LBFGS.v1"
    for _ in range(2):
        nlp.update(examples, sgd=registry.get("optimizers", optimizer)())
    return request.param, pipe.to_bytes()


# --------------------------------------------------------------------------------------- a file as a tree, and back


def _tree(data):
    content = srsly.msgpack_loads(zlib.decompress(data[len(saving.FORMAT.magic) + whole_files.HEADER.size :]))
    content["model"] = srsly.msgpack_loads(content["model"])
    for attrs in content["model"]["attrs"]:
        for name in attrs:
            attrs[name] = srsly.msgpack_loads(attrs[name])
    return content


def _file(content):
    content = copy.deepcopy(content)
    if isinstance(content.get("model"), dict):
        nodes = content["model"].get("attrs")
        for attrs in nodes if isinstance(nodes, list) else []:
            for name in attrs if isinstance(attrs, dict) else []:
                attrs[name] = srsly.msgpack_dumps(attrs[name])
        content["model"] = srsly.msgpack_dumps(content["model"])
    payload = zlib.compress(srsly.msgpack_dumps(content))
    return (
        saving.FORMAT.magic
        + whole_files.HEADER.pack(saving.FORMAT.version, zlib.crc32(payload), len(payload))
        + payload
    )


def _places(tree, path=()):
    """All places in a tree: their containers and keys, with the way there."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key, (*path, key)
        yield from _places(value, (*path, key))


# ----------------------------------------------------------------------------------------------------- what is changed

_ODD = [
    None,
    True,
    -1,
    0,
    1,
    2,
    3,
    2**31,
    2**63,
    1.5,
    float("nan"),
    "",
    "x",
    b"",
    b"\0" * 8,
    [],
    ["x"],
    [[1]],
    {},
    {"x": 1},
]


def _changed(value, rng):
    """Something else in the place of a value, of another type or nearly the same."""
    if rng.random() < 0.25:
        return rng.choice([*_ODD, np.zeros(3, dtype=np.float32), np.zeros((2, 2), dtype=np.int32)])
    if isinstance(value, np.ndarray):
        return _changed_array(value, rng)
    if isinstance(value, bytes):
        return _changed_bytes(value, rng)
    if isinstance(value, bool) or not isinstance(value, (int, float, str, list)):
        return rng.choice(_ODD)
    if isinstance(value, (int, float)):
        return rng.choice([value + 1, value - 1, -value, 2 * value, value * 1000])
    if isinstance(value, str):
        return rng.choice([value + "x", value[:-1], value.upper(), value * 2])
    changed = [*value, *value[:1]] if rng.random() < 0.5 else value[:-1]
    return rng.sample(changed, len(changed))


def _changed_array(array, rng):
    kind = rng.randrange(6)
    if kind == 0 and array.size:
        changed = array.copy()
        changed.flat[rng.randrange(array.size)] = rng.choice([0, 1, 7]) if array.dtype.kind in "iub" else np.nan
        return changed
    if kind == 1:
        return array.astype(rng.choice([np.float64, np.int32, np.uint8]))
    if kind == 2:
        return array[..., :-1]
    if kind == 3:
        return array.reshape(1, *array.shape)
    if kind == 4:
        return np.concatenate([array, array])
    return array.ravel()


def _changed_bytes(data, rng):
    if rng.random() < 0.3:  # another number in what was compressed
        try:
            return zlib.compress(_changed_bytes(zlib.decompress(data), rng))
        except zlib.error:
            pass
    at = rng.randrange(len(data) or 1)
    return rng.choice(
        [data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :], data[:at], data + data[:at], data[at:]]
    )


def _craft(content, rng):
    """A content with one or two changes, and these in words."""
    # What is in the layers of an encoder is thinc's business
    n_nodes = len(content["model"]["nodes"])
    layers = range(2, n_nodes) if n_nodes > 3 else ()
    content, said = copy.deepcopy(content), []
    for _ in range(rng.choice([1, 1, 1, 2])):
        places = [place for place in _places(content) if len(place[2]) < 3 or place[2][2] not in layers]
        if not places:
            break
        container, key, path = rng.choice(places)
        if rng.random() < 0.15 and isinstance(container, dict):
            del container[key]
            said.append(f"{path} is gone")
        else:
            container[key] = _changed(container[key], rng)
            said.append(f"{path} is {container[key]!r:.200}")
    return content, "; ".join(said)


# ------------------------------------------------------------------------------------------------------------- the test


def _docs(nlp):
    return [plain(example.reference) for example in (*ner_examples(nlp), *tag_examples(nlp))] + [nlp.make_doc("")]


@pytest.mark.parametrize("seed", range(RUNS))
def test_crafted_files_are_refused_or_work(trained, seed):
    """25 of 194 failed later, with an error of numpy's."""
    name, data = trained
    content, rng = _tree(data), random.Random(seed)
    nlp, pipe = _make(name)
    fresh = pipe.to_bytes()
    for case in range(CASES // len(CONFIGS)):
        crafted, said = _craft(content, rng)
        try:
            pipe.from_bytes(_file(crafted))
        except ValueError as error:
            assert str(error).startswith("CRF50"), f"seed {seed}, case {case}: {said}"
            assert pipe.to_bytes() == fresh, f"seed {seed}, case {case}: {said}"
            continue
        except Exception as error:
            pytest.fail(f"seed {seed}, case {case}: {said}: {error!r}")
        try:
            if pipe.is_initialized:
                list(nlp.pipe(_docs(nlp)))
            assert pipe.from_bytes(pipe.to_bytes()).labels == tuple(pipe.labels)
        except Exception as error:
            pytest.fail(f"seed {seed}, case {case} loads, then fails: {said}: {error!r}")
        nlp, pipe = _make(name)
