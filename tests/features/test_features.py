"""Features against a plain Python reading of the templates."""

import itertools
import math
import pickle
import re
import threading
import zlib

import hypothesis
import numpy as np
import pytest
import spacy
from hypothesis import strategies as st
from spacy.matcher import PhraseMatcher
from spacy.strings import hash_string
from spacy.tokens import Doc, Token
from spacy.util import filter_spans, registry

from spacy_crf.features import packaged_lists
from spacy_crf.features.clusters import Clusters, WordClusters
from spacy_crf.features.doc_batch import sequence_starts
from spacy_crf.features.extractor import CompiledTemplates, FeatureSet, IndexBuilder
from spacy_crf.features.feature_index import CountingTable, FeatureIndex, HashedIndex, HashTable
from spacy_crf.features.gazetteers import Gazetteer, read_entries, read_gazetteers
from spacy_crf.features.items import ItemHashes, ItemList, named_numbers
from spacy_crf.features.lexemes import LexemeTable
from spacy_crf.features.presets import (
    features,
    ner_features,
    tagger_features,
)
from spacy_crf.features.segment_templates import segment_features
from spacy_crf.kernels.hashing import ABSENT
from spacy_crf.models.emissions import HashedEmissions, SparseEmissions
from spacy_crf.models.segments import SparseSegments
from tests.util import draws

# Checksums of their templates. One that changes takes a new number: its name promises what it meant
SPELLED_PRESETS = {
    "ner_features": 2690249560,
    "tagger_features": 2547909825,
    "segment_features": 3474307172,
}
HASHES_OF_SAVED_MODELS = [
    *(11724556408893989787, 11164902482223277355, 812238095144249939, 8105097113831310172),
    *(15111438328409758322, 2677515452674963592),
]
TEXTS = ["New York is big .", "", "I live in New Orleans , Louisiana", "Hi"]


@pytest.fixture(scope="module")
def nlp():
    return spacy.blank("en")


@pytest.fixture(scope="module")
def docs(nlp):
    docs = [Doc(nlp.vocab, words=text.split()) for text in TEXTS]
    for doc in docs:
        for token in doc:
            token.tag_ = "NNP" if token.is_title else "X"
    docs[2][4].is_sent_start = True  # cuts the third Doc into two sequences
    return docs


def freeze(feature_set, docs, gazetteers=None, min_count=1, clusters=None):
    """The index of some Docs, and the names of the features it finds at each token again."""
    reader = feature_set.reader(
        gazetteers or {}, clusters if clusters is None or isinstance(clusters, dict) else {"": clusters}
    )
    compiled = CompiledTemplates(feature_set.templates, reader)
    reader.keep_names(True)
    builder = IndexBuilder(compiled, FeatureIndex.empty())
    for doc in docs:
        builder.add(reader.read([doc]))
    index = builder.freeze(builder.table.counts >= min_count, docs[0].vocab)
    reader.keep_names(False)
    features = compiled.rows(reader.read(docs), index)
    names = [
        sorted(index.name(row) for row in features.rows[begin:end])
        for begin, end in zip(features.starts, features.starts[1:])
    ]
    return index, features, names


def by_hand(docs, templates, padding):
    """The same in plain Python, for templates of simple attributes."""
    read = {
        "lower": lambda token: token.lower_,
        "orth": lambda token: token.text,
        "shape": lambda token: token.shape_,
        "suffix2": lambda token: token.text[-2:] if len(token) > 1 else None,
        "tag": lambda token: token.tag_,
        "is_title": lambda token: str(int(token.is_title)),
        "length": lambda token: str(len(token)),
    }
    for doc in docs:
        starts = [t.i for t in doc if t.i == 0 or t.is_sent_start]
        for begin, end in zip(starts, [*starts[1:], len(doc)]):
            for i in range(begin, end):
                names = []
                for template in templates:
                    values = []
                    for attribute, offset in template.parts:
                        if attribute == "bias":
                            values.append("1")
                        elif i + offset < begin:
                            values.append(f"<BOS{begin - i - offset}>" if padding else None)
                        elif i + offset >= end:
                            values.append(f"<EOS{i + offset - end + 1}>" if padding else None)
                        else:
                            values.append(read[attribute](doc[i + offset]))
                    if None not in values:
                        names.append("bias" if str(template) == "bias" else f"{template}={'|'.join(values)}")
                yield sorted(names)


@pytest.mark.parametrize("padding", [True, False])
def test_features_are_those_of_a_plain_reading(docs, padding):
    templates = ["bias", "lower[-2..2]", "suffix2[0]", "tag[-1]|lower[0]", "shape[-1]|tag[0]|is_title[1]", "length[1]"]
    feature_set = FeatureSet(templates, padding=padding)
    _, features, names = freeze(feature_set, docs)
    assert names == list(by_hand(docs, feature_set.templates, padding))
    assert features.values is None


def test_batch_equals_one_by_one(docs):
    feature_set = FeatureSet(["lower[-1..1]", "tag[-1]|orth[1]"])
    reader = feature_set.reader({})
    compiled = CompiledTemplates(feature_set.templates, reader)
    together = compiled.hash(reader.read(docs)).hashes
    single = np.concatenate([compiled.hash(reader.read([doc])).hashes for doc in docs])
    assert (together == single).all()
    assert together.shape == (sum(map(len, docs)), 4)


def test_what_prediction_finds_is_what_training_finds(docs):
    """Prediction looks features up template by template, with a sieve; training token by token."""
    some = FeatureSet(["bias", "lower[-1]|lower[0]", "shape[0]|tag[1]", "lower[-2..2]"], padding=False)
    index, _, _ = freeze(some, docs[2:])
    compiled = CompiledTemplates(some.templates, some.reader({}))
    columns = compiled.reader.read(docs)
    for known in (index, HashedIndex(8), FeatureIndex.empty()):
        features = compiled.rows(columns, known)
        tokens = np.repeat(np.arange(len(columns.positions)), np.diff(features.starts))
        found_tokens, rows = known.known(compiled.hash_positions(columns), columns.positions)
        # of each token in the same order, so that sums are the same to the last bit
        order = np.argsort(found_tokens, kind="stable")
        assert found_tokens[order].tolist() == tokens.tolist()
        assert rows[order].tolist() == features.rows.tolist()
    nothing = compiled.reader.read([docs[1]])
    assert not len(index.known(compiled.hash_positions(nothing), nothing.positions)[1])


def test_min_count_counts_tokens(docs):
    index, _, _ = freeze(FeatureSet(["orth[0]"]), docs, min_count=2)
    assert index.names() == ["orth[0]=New"]


def test_rows_are_in_the_order_of_first_mention(docs):
    index, _, _ = freeze(FeatureSet(["orth[0]", "tag[0]"]), docs[:1])
    assert index.names() == [
        *("orth[0]=New", "tag[0]=NNP", "orth[0]=York", "orth[0]=is", "tag[0]=X"),
        *("orth[0]=big", "orth[0]=."),
    ]


def test_string_functions_are_a_source_like_any_other(docs):
    def letters(doc):
        return [sorted(set(token.lower_) & set("aeiou")) for token in doc]

    feature_set = FeatureSet(["fn:vowels[0]", "fn:vowels[-1]|lower[0]"], functions={"vowels": letters})
    _, features, names = freeze(feature_set, docs[:1])
    assert names[1] == ["fn:vowels[-1]|lower[0]=e|york", "fn:vowels[0]=o"]
    assert names[3] == ["fn:vowels[-1]|lower[0]=i|big", "fn:vowels[0]=i"]
    assert (features.values == 1).all()


def test_numbers_are_real_values(docs):
    feature_set = FeatureSet(
        ["fn:n[0]", "lower[0]"], functions={"n": lambda doc: np.arange(2.0 * len(doc)).reshape(-1, 2)}
    )
    index, features, _ = freeze(feature_set, docs[:1])
    row = index.names().index("fn:n[0]=1")
    assert features.values[features.rows == row].tolist() == [1, 3, 5, 7, 9]
    words = [n for n, name in enumerate(index.names()) if name.startswith("lower")]
    assert (features.values[np.isin(features.rows, words)] == 1).all()


NO_NUMBERS = [
    float("nan"),
    float("inf"),
    -float("inf"),
    1e39,
    10**400,
    -(10**5000),
    np.float64("nan"),
    np.longdouble("1e400"),
]


@pytest.mark.parametrize("bad", NO_NUMBERS, ids=range(len(NO_NUMBERS)))
def test_numbers_must_be_finite(docs, bad):
    feature_set = FeatureSet(
        ["fn:n[0]"], functions={"n": lambda doc: [[1.0] if token.i != 2 else [bad] for token in doc]}
    )
    with pytest.raises(ValueError, match=r"CRF109.*fn:n.*token 2 \('is'\).*New York is big"):
        freeze(feature_set, docs[:1])


def test_functions_must_fit_the_doc(docs):
    with pytest.raises(ValueError, match=r"CRF110.*'fn:short' returned 1 items for a document of 5 tokens"):
        freeze(FeatureSet(["fn:short[0]"], functions={"short": lambda doc: [["x"]]}), docs[:1])
    for given, got in ((None, "NoneType"), (3, "int"), (np.array(3.0), "ndarray"), (np.zeros((0, 5)), 0), ({}, 0)):
        feature_set = FeatureSet(["fn:odd[0]"], functions={"odd": lambda doc, given=given: given})
        with pytest.raises(ValueError, match=rf"CRF110.*'fn:odd' returned {got} items for a document of 5 tokens"):
            freeze(feature_set, docs[:1])
    with pytest.raises(ValueError, match=r"CRF111.*'fn:odd', for a token: 'x'"):
        freeze(FeatureSet(["fn:odd[0]"], functions={"odd": lambda doc: ["x"] * len(doc)}), docs[:1])


ODD_ROWS = [None, 3.5, "x", b"x", [None], [b"x"], ["a", 1.0], [1.0, None], {"a": b"1.5"}, {"a": None}, [True], [1 + 2j]]
ODD_ROWS += [{"a", 1}, {1, 2}, np.array(3.0), np.array([[1.0]]), np.array([True]), [[1.0]], [10**5000, None], object()]
ODD_ROWS += [
    {"a": [1, 2]},
    {"a": {"b": None}},
    {"a": [["x"]]},
    {"a": [{"x": 1}]},
    {"a": np.array(["x"])},
    {"a": ["x", 1]},
]


@pytest.mark.parametrize("odd", ODD_ROWS, ids=range(len(ODD_ROWS)))
def test_what_functions_may_not_give_is_shown(docs, odd):
    feature_set = FeatureSet(["fn:odd[0]"], functions={"odd": lambda doc: [odd] * len(doc)})
    with pytest.raises(ValueError, match=r"CRF111.*'fn:odd', for a token: .+"):
        freeze(feature_set, docs[:1])


def test_what_functions_may_give(docs):
    given = [
        {"n": np.int64(3), "yes": True, 7: 0.5},
        {"b", "a"},
        (np.float32(2.0),),
        np.array(["x"]),
        np.array([], int),
    ]
    feature_set = FeatureSet(["fn:any[0]"], functions={"any": lambda doc: given})
    _, features, names = freeze(feature_set, docs[:1])
    assert [[name.partition("=")[2] for name in of_token] for of_token in names] == [
        *(["7", "n", "yes"], ["a", "b"], ["0"], ["x"], [])
    ]
    assert sorted(features.values.tolist()) == [0.5, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0]


CRFSUITE_DICTS = [
    {"w": "kestrel"},
    {"w": "", "": "x", "a:b": "c:d"},
    {
        "n": 2,
        "x": -1.5,
        "yes": True,
        "no": False,
        "np": np.float64(2.0),
        "np_yes": np.bool_(True),
        "np_w": np.str_("y"),
    },
    {"at": {"-1": {"w": "the", "upper": False}, "+1": {"n": 3}}},
    {"in": ["birds", "films"], "set": {"b", "a"}, "none": [], "nothing": {}},
    {"é": "ß", "w": "新 York"},
    {},
    ["a", "b"],
    {"b", "a"},
]


@pytest.mark.parametrize("given", CRFSUITE_DICTS, ids=range(len(CRFSUITE_DICTS)))
def test_dicts_are_named_as_python_crfsuite_names_them(given):
    """Its users bring functions that give dicts with strings, which once ended in a ValueError of numpy's."""
    pycrfsuite = pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    [expected] = pycrfsuite.ItemSequence([given]).items()
    names, numbers = named_numbers(given)
    assert dict(zip(names, numbers)) == expected
    assert len(names) == len(expected)
    listed, quick = ItemList("fn:d"), ItemList("fn:d", ItemHashes("fn:d"))
    for of_list in (listed, quick, quick):
        of_list.add(given)
    hashes, values, _ = listed.items
    assert [listed.names[hashed] for hashed in hashes.tolist()] == names
    assert values.tolist() == pytest.approx(numbers)
    without_zeros = [hashed for hashed, number in zip(hashes.tolist(), numbers) if number]
    assert quick.items.hashes.tolist() == 2 * without_zeros


def test_keys_that_are_equal_have_names_of_their_own():
    listed = ItemList("fn:d")
    for given in ({1: True}, {True: True}, {1.0: True}, {"1": True}):
        listed.add(given)
    assert [listed.names[hashed] for hashed in listed.items.hashes.tolist()] == ["1", "True", "1.0", "1"]


def test_features_of_dicts_have_these_names(docs):
    given = [{"w": token.lower_, "at": {"title": token.is_title}} for token in docs[0]]
    _, _, names = freeze(FeatureSet(["fn:d[0]"], functions={"d": lambda doc: given}), docs[:1])
    assert names[0] == ["fn:d[0]=at:title", "fn:d[0]=w:new"]


def test_a_dict_that_holds_itself_is_shown(docs):
    endless = {}
    endless["again"] = endless
    feature_set = FeatureSet(["fn:odd[0]"], functions={"odd": lambda doc: [endless] * len(doc)})
    with pytest.raises(ValueError, match=r"CRF111.*'fn:odd'"):
        freeze(feature_set, docs[:1])


def test_half_a_character_is_no_feature(docs):
    feature_set = FeatureSet(["fn:odd[0]"], functions={"odd": lambda doc: [["\ud800"]] * len(doc)})
    with pytest.raises(ValueError, match=r"CRF131.*'fn:odd' has the value '\\ud800'"):
        freeze(feature_set, docs[:1])


@pytest.fixture
def extension():
    Token.set_extension("crf_test", default=None, force=True)
    yield
    Token.remove_extension("crf_test")


@pytest.mark.usefixtures("extension")
def test_extensions(nlp):
    doc = Doc(nlp.vocab, words=list("abcdefgh"))
    for token, value in zip(doc, ["a", 2.5, True, np.float32(0.5), np.bool_(False), np.int64(7), 10**30]):
        token._.crf_test = value
    _, features, names = freeze(FeatureSet(["ext:crf_test[0]"]), [doc])
    values = ["=a", "", "=True", "", "=False", "=7", f"={10**30}"]
    assert names == [*([f"ext:crf_test[0]{value}"] for value in values), []]
    assert features.values.tolist() == [1.0, 2.5, 1.0, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize(
    "value, message",
    [
        *((value, r"CRF130.*'crf_test' is .+ at token 1 \('b'\)") for value in (b"x", ["x"], {}, object(), 1j)),
        *(
            (value, r"CRF109.*'ext:crf_test' is .+ at token 1")
            for value in (math.nan, math.inf, 1e200, np.float32("inf"))
        ),
        ("\udfff", r"CRF131.*'ext:crf_test' has the value"),
    ],
)
def test_what_extensions_may_not_be_is_shown(nlp, value, message):
    """Objects became their text, with addresses in it; numbers too large for float32 became infinite."""
    doc = Doc(nlp.vocab, words=list("abc"))
    doc[1]._.crf_test = value
    with pytest.raises(ValueError, match=message):
        freeze(FeatureSet(["ext:crf_test[0]"]), [doc])


def test_gazetteers(nlp, docs):
    entries = [
        (("new", "york"), "CITY"),
        (("New", "York"), "CITY"),
        (("york",), "NAME"),
        (("big",), ""),
        (("big",), ""),
    ]
    gazetteer = Gazetteer(entries)
    assert len(gazetteer.entries) == 4  # one entry was there twice
    _, _, names = freeze(FeatureSet(["in:places[0]", "in:places[-1]"]), docs[:1], {"places": gazetteer})
    assert names == [
        ["in:places[-1]=<BOS1>", "in:places[0]=B-CITY"],
        ["in:places[-1]=B-CITY", "in:places[0]=L-CITY"],
        ["in:places[-1]=L-CITY"],
        ["in:places[0]=U"],
        ["in:places[-1]=U"],
    ]
    again = Gazetteer.from_dict(gazetteer.to_dict())
    assert freeze(FeatureSet(["in:places[0]", "in:places[-1]"]), docs[:1], {"places": again})[2] == names


@pytest.mark.parametrize("attr", ["LOWER", "ORTH"])
def test_phrases_are_found_as_by_spacy(nlp, attr):
    """The longest phrases, of equal ones that overlap the first; never across Docs. "mark" is a symbol of spaCy."""
    rng = np.random.default_rng(0)
    alphabet = np.array(["mark", "Mark", "b", "c"])
    phrases = {tuple(map(str, rng.choice(alphabet, size=n))) for n in (1, 2, 2, 3, 3, 4, 5, 6)}
    docs = [Doc(nlp.vocab, words=rng.choice(alphabet, size=n).tolist()) for n in (0, 1, 2, 40, 300)]
    gazetteer = Gazetteer([(phrase, "") for phrase in phrases], attr=attr)
    matcher = PhraseMatcher(nlp.vocab, attr=attr)
    matcher.add("phrases", [Doc(nlp.vocab, words=phrase) for phrase in phrases])
    expected = []
    for doc in docs:
        letters = [""] * len(doc)
        for span in filter_spans(matcher(doc, as_spans=True)):
            inside = "I" * (len(span) - 2)
            letters[span.start : span.end] = "U" if len(span) == 1 else f"B{inside}L"
        expected += letters
    words = np.concatenate([doc.to_array([attr]) for doc in docs])
    found = gazetteer.find(words, np.cumsum([0, *map(len, docs)]))
    assert [gazetteer.value_names.get(value, "") for value in found.tolist()] == expected
    assert "I" in expected and "U" in expected


def test_the_first_label_of_a_phrase_counts(nlp):
    doc = Doc(nlp.vocab, words=["big", "apple"])
    for labels in (["CITY", "FRUIT", "", "FIRM"], ["FIRM", "", "FRUIT", "CITY"]):
        gazetteer = Gazetteer([(("big", "apple"), label) for label in labels])
        found = gazetteer.find(doc.to_array(["LOWER"]), np.array([0, 2]))
        assert [gazetteer.value_names[value] for value in found.tolist()] == [f"B-{labels[0]}", f"L-{labels[0]}"]


@pytest.mark.parametrize("entries", [[], [((), "X")]])
def test_gazetteers_without_words_find_nothing(nlp, entries):
    found = Gazetteer(entries).find(np.array([1, 2], dtype=np.uint64), np.array([0, 2]))
    assert (found == ABSENT).all()


def test_reading_gazetteers(nlp, tmp_path):
    text = tmp_path / "cities.txt"
    text.write_text("New York\n\nBerlin\nNew York\n", encoding="utf8")
    assert list(read_entries("cities", text, nlp.make_doc)) == [
        *((("New", "York"), ""), (("Berlin",), ""), (("New", "York"), "")),
    ]
    lines = tmp_path / "cities.jsonl"
    lines.write_text('"Paris"\n{"pattern": "Gallen, St", "label": "CH"}\n{"text": "Rome"}\n', encoding="utf8")
    assert list(read_entries("cities", lines, nlp.make_doc)) == [
        (("Paris",), ""),
        (("Gallen", ",", "St"), "CH"),
        (("Rome",), ""),
    ]
    lines.write_text('"Paris"\n{"pattern": 3}\n', encoding="utf8")
    with pytest.raises(ValueError, match=r"CRF701: Line 2 of the gazetteer 'cities' .*cities\.jsonl"):
        read_entries("cities", lines, nlp.make_doc)
    with pytest.raises(ValueError, match=r"CRF701.*'cities'.*nowhere\.txt"):
        read_entries("cities", tmp_path / "nowhere.txt", nlp.make_doc)


def test_gazetteers_are_read_as_they_were_written(nlp, tmp_path):
    """A byte order mark was part of the first phrase, and a line separator inside JSON cut its line in two."""
    text = tmp_path / "cities.txt"
    text.write_bytes("\ufeffNew York\r\nBerlin\u2028Mitte\r\n".encode())
    assert list(read_entries("cities", text, nlp.make_doc)) == [(("New", "York"), ""), (("Berlin", "Mitte"), "")]
    lines = tmp_path / "cities.jsonl"
    lines.write_bytes('\ufeff"New\u2028York"\n'.encode())
    assert list(read_entries("cities", lines, nlp.make_doc)) == [(("New", "York"), "")]


def test_empty_gazetteers_are_said(nlp, tmp_path, caplog):
    path = tmp_path / "cities.txt"
    path.write_text("\ufeff\n  \n", encoding="utf8")
    assert list(read_entries("cities", path, nlp.make_doc)) == []
    assert "CRFW130: The gazetteer 'cities' has no entries" in caplog.text


@pytest.mark.parametrize(
    "line, reason",
    [
        ("[" * 100_000, "recursion"),
        (r'"\ud800"', "surrogates"),
        (r'{"text": "a", "label": "\udfff"}', "surrogates"),
        ('{"text": " "}', "expected a phrase"),
        ('{"text": "a", "label": 1}', "'label'"),
        ('{"phrase": "a"}', "'pattern' or 'text'"),
        ("[1]", "expected a phrase"),
        ("1" * 5000, "digits"),
        ("{", "property name"),
    ],
)
def test_lines_that_are_no_entry_are_named(nlp, tmp_path, line, reason):
    path = tmp_path / "cities.jsonl"
    path.write_text(f'"Paris"\n{line}\n', encoding="utf8")
    with pytest.raises(ValueError, match=rf"CRF701: Line 2 of the gazetteer 'cities'.*{reason}"):
        read_entries("cities", path, nlp.make_doc)


@pytest.mark.parametrize(
    "changed", [{"attr": "TAG"}, {"attr": []}, {"scan": 1}, {"entries": [[[1], ""]]}, {"entries": [[["a"], None]]}]
)
def test_gazetteers_of_damaged_models(changed):
    saved = Gazetteer([(("new", "york"), "")]).to_dict()
    with pytest.raises(ValueError, match="CRF509: a gazetteer is of"):
        Gazetteer.from_dict({**saved, **changed})


@pytest.mark.parametrize(
    "attr, found",
    [
        ("LOWER", [["B"], ["L"], [], ["B"], ["L"], []]),
        ("ORTH", [["B"], ["L"], [], [], [], []]),
        ("SHAPE", [["B"], ["L"], [], [], [], []]),
    ],
)
def test_gazetteers_compare_by_an_attribute(nlp, tmp_path, attr, found):
    path = tmp_path / "cities.txt"
    path.write_text("New York\n", encoding="utf8")
    read = read_gazetteers({"cities": {"path": str(path), "attr": attr}}, nlp.make_doc, {}, owner="crf_ner")
    again = {name: Gazetteer.from_dict(gazetteer.to_dict()) for name, gazetteer in read.items()}
    doc = Doc(nlp.vocab, words=["New", "York", ",", "new", "york", "NEW"])
    _, _, names = freeze(FeatureSet(["in:cities[0]"]), [doc], again)
    assert [[name.partition("=")[2] for name in of_token] for of_token in names] == found


def test_gazetteers_of_packages(nlp, monkeypatch):
    """A model keeps the list of a package that is missing now. A package that has changed is an error."""

    def read(files, known):
        return read_gazetteers(files, nlp.make_doc, known, owner="crf_ner", lang="de")

    lists = {"places": lambda lang: ["New  York", f"{lang}burg", "New York"], "bad": lambda lang: lang.missing}
    package = packaged_lists.Package("pytest", "places", "MIT", lists)
    monkeypatch.setattr(packaged_lists, "PACKAGES", [package])
    known = read({"places": {"path": "pytest/places", "attr": "ORTH"}}, {})
    assert known["places"].entries == [(("New", "York"), ""), (("deburg",), "")] and known["places"].attr == "ORTH"
    with pytest.raises(ValueError, match=r"CRF701: .*pytest/bad.*pip install pytest"):
        read({"bad": "pytest/bad"}, {})
    monkeypatch.setattr(packaged_lists, "PACKAGES", [package._replace(name="no_such_package")])
    assert read({"places": "no_such_package/places"}, known)["places"].entries == known["places"].entries
    with pytest.raises(ValueError, match="CRF701"):
        read({"places": "no_such_package/other"}, {})


@pytest.mark.parametrize(
    "given",
    [5, None, {}, {"path": "x.txt", "attr": "TAG"}, {"path": "x.txt", "case": True}, {"path": 3, "attr": "ORTH"}],
)
def test_settings_of_gazetteers_are_checked(nlp, given):
    with pytest.raises(ValueError, match=r"CRF020: .*gazetteers\]: cities = .+LOWER, ORTH, SHAPE"):
        read_gazetteers({"cities": given}, nlp.make_doc, {}, owner="crf_ner")


@pytest.mark.parametrize(
    "templates, message",
    [
        (["lowre[0]"], r"CRF106: The template 'lowre\[0\]' names the attribute 'lowre'.*did you mean 'lower'"),
        (["lowercase[0]"], r"CRF106: .*Attributes: \d+ names \(did you mean 'lower'\?\)\.$"),
        (["ext:nope_not_set[0]"], r"CRF106.*'ext:nope_not_set\[0\]'.*Token\.set_extension\('nope_not_set'"),
        (["fn:nope[0]"], r"CRF106.*'fn:nope\[0\]'"),
        ([], "CRF107"),
    ],
)
def test_errors_come_when_the_config_is_read(templates, message):
    with pytest.raises(ValueError, match=message):
        FeatureSet(templates)


NOTHING_OF_THE_KIND = [
    5,
    -1,
    0,
    1.5,
    math.nan,
    10**5000,
    "x",
    "",
    b"x",
    [5],
    [None],
    [["lower[0]"]],
    object(),
    np.array(["a"]),
    {1: 2},
]
MANY = "|".join(["lower[-20..20]"] * 6)
MISTAKES = {
    "templates": (
        features,
        [*NOTHING_OF_THE_KIND, None, True, [MANY], [f"lower[{'9' * 5000}]"], ["\ud800[0]"], {"lower[0]"}],
    ),
    "transitions": (lambda given: features(["lower[0]"], given), [*NOTHING_OF_THE_KIND, ["in:\udfff[0]"]]),
    "padding": (
        lambda given: features(["lower[0]"], padding=given),
        [*NOTHING_OF_THE_KIND, None, {"before": []}, {"before": "x", "behind": []}, {"before": [], "behind": [1]}],
    ),
    "functions": (lambda given: features(["lower[0]"], functions=given), [*NOTHING_OF_THE_KIND, {"a": 1}, {"a": None}]),
    "extra": (ner_features, [*NOTHING_OF_THE_KIND, {}]),
    "extra of taggers": (tagger_features, NOTHING_OF_THE_KIND),
    "without": (lambda given: tagger_features(without=given), [*NOTHING_OF_THE_KIND, ["tag[0]"], ["lower[-3..3]"]]),
    "window": (lambda given: ner_features(window=given), [None, True, -1, 21, 1.5, "2", [2]]),
    "transitions of v3": (lambda given: ner_features(transitions=given), [*NOTHING_OF_THE_KIND, ["lower"]]),
    "seg templates": (segment_features, [*NOTHING_OF_THE_KIND, [MANY.replace("lower", "seg.first:lower")]]),
    "seg extra": (lambda given: segment_features(extra=given), [*NOTHING_OF_THE_KIND, ["seg.in:\ud800"]]),
    "seg without": (
        lambda given: segment_features(without=given),
        [*NOTHING_OF_THE_KIND, ["seg.near:a"], ["lower[0]"]],
    ),
    "seg functions": (lambda given: segment_features(functions=given), [*NOTHING_OF_THE_KIND, {"a": 1}]),
    "patterns": (
        lambda given: segment_features(patterns=given),
        [*NOTHING_OF_THE_KIND, {"a": 1}, {"a": {}}, {"a": [[]]}],
    ),
    "features": (SparseEmissions, [*NOTHING_OF_THE_KIND, None]),
    "min_count": (lambda given: SparseEmissions(ner_features(), given), [None, True, *NOTHING_OF_THE_KIND[1:5]]),
    "possible_states": (lambda given: SparseEmissions(ner_features(), 1, given), [*NOTHING_OF_THE_KIND, None]),
    "hashed features": (HashedEmissions, [*NOTHING_OF_THE_KIND, features(["lower[0]"], ["lower[0]"])]),
    "rows": (lambda given: HashedEmissions(ner_features(), given), [*NOTHING_OF_THE_KIND, None, 2**31]),
    "segments": (SparseSegments, [*NOTHING_OF_THE_KIND, ner_features()]),
    "seg min_count": (lambda given: SparseSegments(None, given), [None, True, *NOTHING_OF_THE_KIND[1:5]]),
    "seg possible_states": (lambda given: SparseSegments(None, 1, given), [*NOTHING_OF_THE_KIND, None]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_whatever_the_settings_of_features_are_is_said_with_a_code(name):
    make, mistakes = MISTAKES[name]
    for given in mistakes:
        with pytest.raises(ValueError) as error:
            make(given)
        assert str(error.value).startswith(("CRF1", "CRF020", "CRF610")), given
        str(error.value).encode("utf8")  # it can be printed


def test_only_one_part_of_many_values():
    with pytest.raises(ValueError, match="CRF121"):
        FeatureSet(["fn:a[0]|fn:a[1]"], functions={"a": len})


def test_missing_gazetteer_is_named():
    with pytest.raises(ValueError, match=r"CRF106.*'in:cities\[0\]' names the gazetteer 'cities'.*there: towns"):
        FeatureSet(["in:cities[0]"]).reader({"towns": Gazetteer([])})


def test_every_attribute_can_be_read(docs):
    from spacy_crf.features.lexemes import LEXEME_ATTRIBUTES
    from spacy_crf.features.token_columns import TOKEN_ATTRIBUTES

    attributes = [*LEXEME_ATTRIBUTES, *TOKEN_ATTRIBUTES]
    templates = [f"{name}[0]" for name in attributes if name != "bias" and not name.startswith(("ngrams", "if:"))]
    clusters = Clusters(WordClusters.of_words((token.text, "01") for doc in docs for token in doc))
    index, _, names = freeze(FeatureSet(templates), docs, clusters=clusters)
    words = [token.text for doc in docs for token in doc]
    affixes = [max(0, 5 - len(word)) + max(0, 10 - len(word)) for word in words]  # those that the word is too short for
    assert [len(found) for found in names] == [len(templates) - missing for missing in affixes]
    assert "short_shape[0]=Xx" in index.names() and "sent_start[0]=-1" not in names[0]


def test_minus_one_is_a_value(nlp):
    """It was also the mark of columns without a value, so that heads and sentence starts lost it."""
    heads = [1, 1, 1, 2, 3, 2]
    doc = Doc(nlp.vocab, words=["all", "of", "them", "read", "in", "it"], heads=heads, deps=["dep"] * 6)
    _, _, names = freeze(FeatureSet(["head[0]", "sent_start[0]", "head[-1]|head[0]"], padding=False), [doc])
    offsets = [str(head - i) for i, head in enumerate(heads)]
    for i, found in enumerate(names):
        plain = [f"head[0]={offsets[i]}", f"sent_start[0]={1 if i == 0 else -1}"]
        plain += [f"head[-1]|head[0]={offsets[i - 1]}|{offsets[i]}"] if i else []
        assert found == sorted(plain)


def test_features_have_the_hashes_of_saved_models(nlp):
    """Saved models know their features by these numbers."""
    feature_set = FeatureSet(["bias", "lower[0]", "suffix3[-1]|tag[1]", "shape[2]", "is_title[0]", "head[0]|spacy[0]"])
    doc = Doc(nlp.vocab, words=["Ann", "leaves", "Rome"], tags=["N", "V", "N"], heads=[1, 1, 1], deps=["dep"] * 3)
    reader = feature_set.reader({})
    hashes = CompiledTemplates(feature_set.templates, reader).hash(reader.read([doc])).hashes
    assert hashes[0].tolist() == HASHES_OF_SAVED_MODELS


def test_presets_make_indices(docs):
    for preset in (ner_features, tagger_features):
        index, _, _ = freeze(preset(extra=["tag[0]"]), docs)
        assert "tag[0]=NNP" in index.names()


def test_presets_keep_their_meaning():
    """Saved pipelines name them, and load only with the templates that they were trained with."""
    presets = (ner_features, tagger_features, segment_features)
    spelled = {preset.__name__: zlib.crc32(repr(preset().as_text()).encode("utf8")) for preset in presets}
    assert spelled == SPELLED_PRESETS


@pytest.mark.parametrize("preset", [ner_features, tagger_features])
def test_presets_change_without_being_copied(preset):
    whole = preset().as_text()
    changed = preset(extra=["tag[0]"], without=["lower[-2..-1]", "bias"]).as_text()
    assert changed == [name for name in whole if name not in ("lower[-2]", "lower[-1]", "bias")] + ["tag[0]"]
    wider = {*preset(window=3, without=["lower[3]"], extra=["lower[3]"]).as_text()} - {*whole}
    assert {"lower[-3]", "lower[3]", "lower[-3]|lower[-2]", "lower[2]|lower[3]"} <= wider
    assert all("[-3]" in name or "[3]" in name for name in wider)
    assert not any("[-2]" in name or "[2]" in name for name in preset(window=1).as_text())
    assert preset(transitions=["lower[0]"]).as_text()[-1] == "transition lower[0]"
    assert {preset(padding=padding).as_text()[0] for padding in (True, False)} == {"padding", "no padding"}


def test_what_stands_outside_may_be_named(docs):
    """A word that is spelled so looks the same."""
    padding = {"before": ["^", "^^"], "behind": ["$"]}
    templates = ["orth[-2]|orth[1]", "tag[-1]"]
    [doc] = [Doc(docs[0].vocab, words=["^", "b"], tags=["A", "B"])]
    feature_set = FeatureSet(templates, padding=padding)
    assert freeze(feature_set, [doc])[2] == [
        ["orth[-2]|orth[1]=^^|b", "tag[-1]=^"],
        ["orth[-2]|orth[1]=^|$", "tag[-1]=A"],
    ]
    assert features(templates, padding=padding).as_text() == feature_set.as_text() != FeatureSet(templates).as_text()
    with pytest.raises(ValueError, match=r"CRF895.*'orth\[-3\]'.*2 before.*1 behind"):
        FeatureSet([*templates, "orth[-3]"], padding=padding)
    with pytest.raises(ValueError, match=r"CRF895.*'orth\[2\]'"):
        FeatureSet(templates, ["orth[2]"], padding=padding)


def test_index_survives_saving_and_merging(docs):
    index, _, _ = freeze(FeatureSet(["orth[0]", "orth[-1]|orth[0]", "tag[0]"]), docs)
    again = FeatureIndex.from_dict(index.to_dict())
    assert again.names() == index.names()
    assert again.rows(index.keys).tolist() == list(range(len(index)))
    kept = np.arange(len(index)) % 3 == 0
    some, others = index.keep(kept), index.keep(~kept)
    merged = some.extend(others)
    assert sorted(merged.names()) == sorted(index.names())
    assert merged.rows(index.keys[kept]).tolist() == list(range(kept.sum()))


def test_hash_table_grows():
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(1, 2**63, size=20_000, dtype=np.uint64))
    rng.shuffle(keys)
    table = HashTable()
    for part in np.array_split(keys, 13):
        table.insert(part)
    assert table.rows(keys).tolist() == list(range(len(keys)))
    assert table.rows(np.array([0, 1, keys[5]], dtype=np.uint64)).tolist() == [-1, -1, 5]


def test_counting_table_counts():
    rng = np.random.default_rng(1)
    keys = rng.integers(1, 500, size=5000).astype(np.uint64)
    table = CountingTable()
    first = [batch[table.add(batch)] for batch in np.array_split(keys, 7)]
    distinct = list(dict.fromkeys(keys.tolist()))
    assert np.concatenate(first).tolist() == distinct == table.keys.tolist()
    assert table.counts.tolist() == [int((keys == key).sum()) for key in distinct]


def test_table_of_lexemes_is_bounded(nlp):
    reader = FeatureSet(["lower[-1..1]"]).reader({})
    reader.max_words = 10
    tables = set()
    for n in range(20):
        columns = reader.read([Doc(nlp.vocab, words=[f"word{n}a", f"word{n}b", "same"])])
        tables.add(id(columns.table))
        assert columns.table.size <= 10 + 3
    assert len(tables) > 1


def test_reading_from_many_threads(nlp):
    feature_set = FeatureSet(["lower[-1..1]", "suffix2[0]|lower[1]"])
    docs = [Doc(nlp.vocab, words=[f"w{(n * 7 + i) % 300}" for i in range(20)]) for n in range(200)]
    compiled = CompiledTemplates(feature_set.templates, feature_set.reader({}))
    expected = [compiled.hash(compiled.reader.read([doc])).hashes for doc in docs]
    shared = CompiledTemplates(feature_set.templates, feature_set.reader({}))
    wrong = []

    def work(part):
        for n in part:
            if (shared.hash(shared.reader.read([docs[n]])).hashes != expected[n]).any():
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(range(k, 200, 4),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_sequences_are_cut_at_known_sentence_starts():
    doc_starts = np.array([0, 0, 4, 4, 6])
    assert sequence_starts(np.array([0, 2**64 - 1, 1, 0, 1, 1], dtype=np.uint64), doc_starts).tolist() == [
        0,
        2,
        4,
        5,
        6,
    ]
    assert sequence_starts(np.zeros(0, dtype=np.uint64), np.array([0, 0])).tolist() == [0]


def test_feature_sets_can_be_pickled_for_other_processes():
    assert pickle.loads(pickle.dumps(ner_features())).as_text() == ner_features().as_text()


def test_short_words_have_no_long_affixes(nlp):
    """`suffix3` of "is" would only repeat the word."""
    _, _, names = freeze(
        FeatureSet(["prefix2[0]", "suffix3[0]", "suffix3[-1]"]), [Doc(nlp.vocab, words=["is", "big", "x"])]
    )
    assert names == [
        ["prefix2[0]=is", "suffix3[-1]=<BOS1>"],
        ["prefix2[0]=bi", "suffix3[0]=big"],
        ["suffix3[-1]=big"],
    ]


def ngrams_by_hand(word, size, most=12):
    # The marks at both ends differ from the same characters in a word
    marked = [("^", "mark"), *word.lower(), ("$", "mark")]
    runs = [tuple(marked[n : n + size]) for n in range(len(marked) - size + 1)]
    if len(runs) > most:
        runs = runs[: most // 2] + runs[len(runs) - most // 2 :]
    return ["".join(character[0] for character in run) for run in {*runs}]


@pytest.mark.jit
@hypothesis.example(["0^0", "$$", "^^^"])
@hypothesis.given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=["Zs", "Cc"]), min_size=1, max_size=20), min_size=1
    )
)
@draws(40)
def test_ngrams_are_the_runs_of_characters_of_the_word(nlp, words):
    """Each once however often it occurs; of long words those near both ends."""
    doc = Doc(nlp.vocab, words=words)
    _, features, names = freeze(FeatureSet([f"ngrams{n}[0]" for n in (2, 3, 4, 5)]), [doc])
    for token, found in zip(doc, names, strict=True):
        assert found == sorted(f"ngrams{n}[0]={run}" for n in (2, 3, 4, 5) for run in ngrams_by_hand(token.text, n))
    assert features.values is None


@pytest.mark.parametrize("padding", [False, True])
def test_ngrams_join_with_what_has_one_value(nlp, padding):
    _, _, names = freeze(FeatureSet(["ngrams3[-1]|lower[0]"], padding=padding), [Doc(nlp.vocab, words=["Papa", "is"])])
    outside = ["ngrams3[-1]|lower[0]=<BOS1>|papa"] if padding else []
    assert names == [outside, [f"ngrams3[-1]|lower[0]={run}|is" for run in ("^pa", "apa", "pa$", "pap")]]
    with pytest.raises(ValueError, match="CRF121"):
        FeatureSet(["ngrams2[0]|ngrams3[0]"])


def test_flags_that_say_nothing_where_they_are_false(nlp):
    """By themselves, joined, and beside the same flag that says both."""
    templates = ["if:is_title[0]", "if:has_hyphen[-1]|lower[0]", "is_title[0]", "if:has_digit[0]"]
    _, _, names = freeze(FeatureSet(templates, padding=False), [Doc(nlp.vocab, words=["Twenty-1", "is", "Big"])])
    assert names == [
        ["if:has_digit[0]=1", "if:is_title[0]=1", "is_title[0]=1"],
        ["if:has_hyphen[-1]|lower[0]=1|is", "is_title[0]=0"],
        ["if:is_title[0]=1", "is_title[0]=1"],
    ]
    with pytest.raises(ValueError, match=r"CRF106.*'if:lower'"):
        FeatureSet(["if:lower[0]"])


def test_folded_words_have_zeros_for_digits(nlp):
    _, _, names = freeze(FeatureSet(["folded[0]"]), [Doc(nlp.vocab, words=["B-52s", "1999", "Ünder"])])
    assert names == [["folded[0]=b-00s"], ["folded[0]=0000"], ["folded[0]=ünder"]]


def test_lexeme_attributes_are_those_of_the_word(nlp):
    """Read with words of several Docs, some of them met before, some with symbols of spaCy for a hash."""
    words = ["McDonald-9", "case", "NOUN", "😀x", "naïve", "3.5", "http://x.org", "-"]
    docs = [Doc(nlp.vocab, words=words[:3]), Doc(nlp.vocab, words=words)]
    attributes = ["orth", "lower", "shape", "prefix", "suffix", "length", "prefix2", "suffix3"]
    attributes += ["has_hyphen", "has_digit", "is_title", "like_num", "like_url"]
    _, _, names = freeze(FeatureSet([f"{attribute}[0]" for attribute in attributes]), docs)
    for token, found in zip([*docs[0], *docs[1]], names, strict=True):
        text = token.text
        expected = {name: getattr(token, f"{name}_") for name in ("orth", "lower", "shape", "prefix", "suffix")}
        expected |= {
            "length": len(text),
            "has_hyphen": int("-" in text),
            "has_digit": int(any(c.isdigit() for c in text)),
        }
        expected |= {name: int(getattr(token, name)) for name in ("is_title", "like_num", "like_url")}
        expected |= {"prefix2": text[:2]} if len(text) > 1 else {}
        expected |= {"suffix3": text[-3:]} if len(text) > 2 else {}
        assert sorted(found) == sorted(f"{name}[0]={value}" for name, value in expected.items())


@pytest.mark.parametrize("names", [None, {}])
def test_folded_words_and_short_shapes_are_hashed_once_for_all(nlp, names):
    """Most are known without a hash of their own: not those with digits of any script, nor words that are symbols of spaCy."""
    words = ["B-52s", "1999", "٣x", "Ünder", "cc", "NOUN", "Aaa", "x²", "A", "McDonald-9", "b-52S"]
    doc = Doc(nlp.vocab, words=words)
    table = LexemeTable(["folded", "short_shape"], 1, False, names)
    found = table.columns[table.numbers(doc.to_array("ORTH"), [doc])]
    folded = [re.sub(r"\d", "0", token.lower_) for token in doc]
    shapes = ["".join(kind for kind, _ in itertools.groupby(token.shape_)) for token in doc]
    assert found.tolist() == [list(map(hash_string, pair)) for pair in zip(folded, shapes)]
    assert names is None or names.items() >= {hash_string(text): text for text in folded + shapes}.items()


@registry.misc("test_features.lengths")
def make_lengths():
    return lambda doc: [[float(len(token))] for token in doc]


@pytest.mark.parametrize("name", ["features.v1", "ner_features.v1", "tagger_features.v1", "text_features.v1"])
def test_functions_are_named_in_the_config(name):
    """confection refused them where the type said that they are functions."""
    block = {"@misc": f"spacy_crf.{name}", "functions": {"lengths": {"@misc": "test_features.lengths"}}}
    block["templates" if name == "features.v1" else "extra"] = ["fn:lengths[0]"]
    feature_set = registry.resolve({"features": block})["features"]
    doc = Doc(spacy.blank("en").vocab, words=["a", "bcd"])
    assert feature_set.functions["lengths"](doc) == [[1.0], [3.0]]
