"""Vectors of the pieces of words, as model2vec distils them from encoders: read without its packages, and kept in the model."""

import copy
import json

import numpy as np
import pytest
import spacy

from spacy_crf.features.word_vectors import WordVectors, read_piece_vectors, read_vectors
from tests.features.test_vectors import blank, marginals, pipe_of, train

PIECES = [
    "[UNK]",
    "rom",
    "##e",
    "paris",
    "##ian",
    "oslo",
    "ann",
    "left",
    "met",
    ".",
    "o",
    "##b",
    "a",
    "##nn",
    "zoe",
    "-",
]
NUMBERS = np.random.default_rng(0).normal(size=(len(PIECES), 4)).astype(np.float32)
BERT = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}


def write(folder, *, model=None, normalizer=BERT, config=None, **tensors):
    """A folder as model2vec writes it."""
    model = model or {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {piece: n for n, piece in enumerate(PIECES)}}
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({"normalizer": normalizer, "model": model}), encoding="utf8")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf8")
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in (tensors or {"embeddings": NUMBERS}).items():
        kind = {"f": "F", "i": "I"}[array.dtype.kind] + str(8 * array.dtype.itemsize)
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    octets = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(octets).to_bytes(8, "little") + octets + data)
    return folder


def mean(*pieces):
    return NUMBERS[[PIECES.index(piece) for piece in pieces]].mean(axis=0)


def test_words_have_the_mean_of_their_pieces(tmp_path):
    """In lower case, without accents, cut at punctuation; a word that has an unknown piece has none of it."""
    vectors = read_piece_vectors(write(tmp_path / "model"))
    words = ["Rome", "París", "parisian-ann", "Ob", "xyz", "", "xyz-Ann", "a" * 101]
    expected = [
        mean("rom", "##e"),
        mean("paris"),
        mean("paris", "##ian", "-", "ann"),
        mean("o", "##b"),
        0,
        0,
        mean("-", "ann"),
        0,
    ]
    for found, vector in zip(vectors.get_batch(words), expected):
        np.testing.assert_allclose(found, np.broadcast_to(vector, 4), rtol=1e-6)
    cased = read_piece_vectors(write(tmp_path / "cased", normalizer=None)).get_batch(["Rome", "rome"])
    assert not cased[0].any() and cased[1].any()


def test_unigram_pieces_are_the_likeliest(tmp_path):
    """Against all ways to cut a word."""
    names = [
        ("<unk>", 0.0),
        ("\u2581", -2.0),
        ("\u2581ro", -3.0),
        ("m", -2.5),
        ("e", -2.0),
        ("me", -4.0),
        ("ro", -2.0),
        ("r", -1.0),
    ]
    numbers = np.eye(len(names), dtype=np.float32)
    model = {"type": "Unigram", "unk_id": 0, "vocab": names}
    vectors = read_piece_vectors(write(tmp_path / "model", model=model, normalizer=None, embeddings=numbers))
    score = dict(names)

    def cuts(text):
        yield from (
            [text[:n], *rest]
            for n in range(1, len(text) + 1)
            if text[:n] in score
            for rest in (cuts(text[n:]) if text[n:] else [[]])
        )

    for word in ("rome", "mere", "r", "emero"):
        best = max(cuts("\u2581" + word), key=lambda pieces: sum(map(score.get, pieces)))
        [found] = vectors.get_batch([word])
        expected = np.mean([numbers[[*score].index(piece)] for piece in best], axis=0)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert vectors.get_batch(["rxe"])[0].any() and not vectors.get_batch(["xyz"])[0, 2:].any()


def test_shared_rows_weights_and_lengths(tmp_path):
    mapping, weights = np.arange(len(PIECES)) // 2, np.linspace(0.1, 2, len(PIECES)).astype(np.float32)
    folder = write(
        tmp_path / "model",
        config={"normalize": True},
        embeddings=NUMBERS[:8].astype(np.float16),
        mapping=mapping,
        weights=weights,
    )
    [found] = read_piece_vectors(folder).get_batch(["Rome"])
    expected = (NUMBERS[0].astype(np.float16) * weights[1] + NUMBERS[1].astype(np.float16) * weights[2]) / 2
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), rtol=1e-5)


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"model": {"type": "BPE", "vocab": {}}}, "kind 'BPE', and only WordPiece and Unigram"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 7}}}, "WordPiece"),
        ({"model": {"type": "Unigram", "unk_id": 99, "vocab": [["a", 0.0]]}}, "an unknown piece beyond them"),
        ({"embeddings": NUMBERS[:3]}, r"16 pieces, and model.safetensors 3 vectors"),
        ({"numbers": NUMBERS}, "has no matrix 'embeddings', but numbers"),
    ],
)
def test_folders_that_cant_be_used(changed, reason, tmp_path):
    write(tmp_path / "model", **changed)
    with pytest.raises(ValueError, match=f"CRF701: .*{reason}"):
        read_vectors(str(tmp_path / "model"), None, spacy.blank("en").vocab, name="crf_ner")


def test_damaged_files(tmp_path):
    folder = write(tmp_path / "model")
    data = (folder / "model.safetensors").read_bytes()
    for changed in (b"", data[:9], data[:-1], b"\xff" * 8 + data[8:], data[:8] + b"[" + data[9:]):
        (folder / "model.safetensors").write_bytes(changed)
        with pytest.raises(ValueError, match="CRF701: "):
            read_vectors(str(folder), None, spacy.blank("en").vocab, name="crf_ner")


@pytest.mark.parametrize("dims", [None, 3])
def test_components_keep_them(dims, tmp_path):
    """On disk, as bytes, in copies, in other processes, and without the folder, for words that training never showed."""
    folder = write(tmp_path / "model")
    nlp = train(blank(), vectors={"path": str(folder), "dims": dims})
    for path in folder.iterdir():
        path.unlink()
    expected = marginals(nlp)
    nlp.to_disk(tmp_path / "saved")
    loaded = spacy.load(tmp_path / "saved")
    for again in (loaded, blank().from_bytes(nlp.to_bytes()), copy.deepcopy(nlp)):
        np.testing.assert_array_equal(marginals(again), expected)
    vectors = pipe_of(loaded).sparse_features.vectors
    assert vectors.of([loaded.vocab["Parisian"]]).any()
    one, two = (
        [doc.to_json() for doc in loaded.pipe(["Ann met Zoe", "Parisian Rome"] * 4, n_process=n, batch_size=2)]
        for n in (1, 2)
    )
    assert one == two


def test_damaged_models(tmp_path):
    vectors = read_vectors(str(write(tmp_path / "model")), None, spacy.blank("en").vocab, name="crf_ner")
    saved = vectors.to_dict()
    assert WordVectors.from_dict(saved).to_dict() == saved
    for changed in ({"kind": "BPE"}, {"pieces": PIECES[1:]}, {"pieces": [1] * 16}, {"scores": [0.0]}, {"lower": 1}):
        with pytest.raises(ValueError, match="CRF509: the table of vectors"):
            WordVectors.from_dict({**saved, "parts": {**saved["parts"], **changed}})
