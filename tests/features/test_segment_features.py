"""Segment templates: what they read, where their weights go, and what they say when they can't be used."""

import sys

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.util import registry

from spacy_crf.features.extractor import IndexBuilder
from spacy_crf.features.feature_index import FeatureIndex, FeatureNames
from spacy_crf.features.gazetteers import Gazetteer
from spacy_crf.features.phrases import PhraseIndex, SpelledSpans
from spacy_crf.features.segment_templates import SegmentFeatureSet, parse_segment_template, segment_features
from spacy_crf.features.segments import CompiledSegments, SpanIndexBuilder, all_spans
from spacy_crf.features.templates import parse_template
from spacy_crf.models.segments import SegmentFeatures

nlp = spacy.blank("en")
CITIES = Gazetteer([(("New", "York"), "US"), (("york",), "UK"), (("San", "Luis", "Obispo"), "US")])


def doc_of(text):
    return Doc(nlp.vocab, words=text.split())


def spans_of(doc, longest):
    return all_spans(np.full(len(doc), len(doc)), 0, len(doc), longest)


def features_of(doc, templates, *, longest=3, gazetteers=None, **settings):
    """Features of every span by template and value: {(begin, end): {name: value}}."""
    compiled = CompiledSegments(SegmentFeatureSet(templates, **settings), gazetteers or {})
    compiled.reader.keep_names(True)
    columns = compiled.reader.read([doc])
    builder = SpanIndexBuilder(compiled, FeatureIndex.empty())
    begin, length = spans_of(doc, longest)
    rows = builder.add([doc], columns, begin, length)
    index = builder.freeze(np.ones(len(builder), dtype=bool), doc.vocab)
    assert len(rows.starts) == len(begin) + 1
    known = compiled.known_spans([doc], columns, longest, index, FeatureIndex.empty())
    first = np.repeat(np.arange(len(doc)), np.diff(known.listed.starts))
    values = np.ones(len(known.rows.rows)) if known.rows.values is None else known.rows.values
    names = index.names()
    return {
        (int(b), int(b + k)): {
            names[known.rows.rows[i]]: float(values[i]) for i in range(*known.rows.starts[n : n + 2])
        }
        for n, (b, k) in enumerate(zip(first, known.listed.lengths))
    }


def test_whole_spans_are_read():
    doc = doc_of("In New York it")
    found = features_of(doc, ["seg.text", "seg.lower", "seg.folded", "seg.shape", "seg.length|seg.first:lower"])
    assert found[1, 3] == {
        "seg.text=New York": 1.0,
        "seg.lower=new york": 1.0,
        "seg.folded=new york": 1.0,
        "seg.shape=Xxx Xxxx": 1.0,
        "seg.length|seg.first:lower=2|new": 1.0,
    }
    assert len(found) == 3 + 3 + 2 + 1  # every span of one to three tokens


def test_whole_spans_are_read_without_their_digits():
    found = features_of(doc_of("Box 42"), ["seg.folded"])
    assert found == {
        (0, 1): {"seg.folded=box": 1.0},
        (1, 2): {"seg.folded=00": 1.0},
        (0, 2): {"seg.folded=box 00": 1.0},
    }


def test_the_preset_changes_without_being_copied():
    whole = segment_features().as_text()
    changed = segment_features(extra=["seg.text"], without=["seg.lower", "seg.first:lower[-1..1]"]).as_text()
    left_out = ("seg.lower", "seg.first:lower", "seg.first:lower[-1]", "seg.first:lower[1]")
    assert changed == [name for name in whole if name not in left_out] + ["seg.text"]
    assert segment_features(["seg.text", "seg.lower"], without=["seg.lower"]).as_text() == ["seg.text"]


def test_joined_parts_read_the_ends_and_their_surroundings():
    doc = doc_of("in New York .")
    [template] = ["seg.before:lower|seg.first:shape|seg.last:lower|seg.after:is_punct"]
    found = features_of(doc, [template])
    assert found[1, 3] == {f"{template}=in|Xxx|york|1": 1.0}
    assert found[0, 1] == {f"{template}=<BOS1>|xx|in|0": 1.0}
    assert found[3, 4] == {f"{template}=york|.|.|<EOS1>": 1.0}


def test_ends_may_have_the_value_minus_one():
    """As a number, -1 was the mark of no value."""
    doc = Doc(nlp.vocab, words=["the", "old", "town"], heads=[2, 2, 2], deps=["det", "amod", "ROOT"])
    doc[1].head, doc[2].head = doc[0], doc[1]
    found = features_of(doc, ["seg.first:head|seg.last:sent_start"])
    assert found[1, 2] == {"seg.first:head|seg.last:sent_start=-1|-1": 1.0}
    assert found[1, 3] == {"seg.first:head|seg.last:sent_start=-1|-1": 1.0}


def test_parts_at_the_ends_read_their_neighbours():
    doc = doc_of("in New York .")
    found = features_of(
        doc, ["seg.first:lower[1]|seg.last:lower[-1]", "seg.first:lower[-2]|seg.last:shape[2]|seg.length"]
    )
    assert found[1, 3] == {
        "seg.first:lower[1]|seg.last:lower[-1]=york|new": 1.0,
        "seg.first:lower[-2]|seg.last:shape[2]|seg.length=<BOS1>|<EOS1>|2": 1.0,
    }
    assert found[3, 4]["seg.first:lower[-2]|seg.last:shape[2]|seg.length=new|<EOS2>|1"] == 1.0


@pytest.mark.parametrize(
    "text", ["seg.first:lower", "seg.first:lower[-2..2]", "seg.last:lower[1]|seg.last:shape[-1..0]"]
)
def test_ends_with_offsets_need_no_list_of_spans(text):
    """Their values are those of token templates at the first and the last token."""
    features = SegmentFeatureSet([text])
    assert not features.spans and not features.span_items
    [kind] = {part.kind for template in features.templates for part in template.parts}
    placed = features.begins if kind == "first" else features.ends
    plain = "|".join(
        part if part.endswith("]") else f"{part}[0]" for part in text.replace(f"seg.{kind}:", "").split("|")
    )
    assert [template.parts for template in placed] == [template.parts for template in parse_template(plain)]


def test_phrases_of_a_gazetteer():
    doc = doc_of("to NEW York or San Luis Obispo")
    found = features_of(doc, ["seg.in:cities", "seg.in:cities|seg.before:lower"], gazetteers={"cities": CITIES})
    assert found == {
        (1, 3): {"seg.in:cities=US": 1.0, "seg.in:cities|seg.before:lower=US|to": 1.0},
        (2, 3): {"seg.in:cities=UK": 1.0, "seg.in:cities|seg.before:lower=UK|new": 1.0},
        (4, 7): {"seg.in:cities=US": 1.0, "seg.in:cities|seg.before:lower=US|or": 1.0},
    }


def test_near_phrases_have_their_similarities():
    from rapidfuzz.distance import JaroWinkler

    doc = doc_of("went to San Luis Obisbo")
    found = features_of(doc, ["seg.near:cities"], gazetteers={"cities": CITIES})
    alike = JaroWinkler.normalized_similarity("san luis obisbo", "san luis obispo")
    assert found[2, 5] == pytest.approx(
        {"seg.near:cities=jaccard US": 2 / 4, "seg.near:cities=jaro-winkler US": alike}, abs=1e-6
    )
    assert (0, 1) not in found


def test_similar_phrases_need_rapidfuzz_but_equal_ones_do_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    doc = doc_of("to San Luis Obispo")
    assert features_of(doc, ["seg.in:cities"], gazetteers={"cities": CITIES}) == {(1, 4): {"seg.in:cities=US": 1.0}}
    with pytest.raises(ImportError, match=r"CRF781: .* needs rapidfuzz.*pip install 'spacy-crf\[fuzzy\]'"):
        features_of(doc, ["seg.near:cities"], gazetteers={"cities": CITIES})


def spans_of_texts(texts):
    words = [word for text in texts for word in text.split()]
    length = np.array([len(text.split()) for text in texts], dtype=np.int32)
    hashes = np.array([nlp.vocab.strings.add(word) for word in words], dtype=np.uint64)
    return SpelledSpans(hashes, np.append(0, np.cumsum(length))[:-1].astype(np.int64), length, texts)


def nearest(entries, texts, **settings):
    """By span and label the two similarities, rounded."""
    index = PhraseIndex(entries, **settings)
    rows = zip(*(array.tolist() for array in index.near(spans_of_texts(texts))))
    return {
        (texts[span], index.labels[label]): (round(shared, 5), round(alike, 5)) for span, label, shared, alike in rows
    }


def scanned(entries, texts):
    """The same in plain Python."""
    from rapidfuzz.distance import JaroWinkler

    best = {}
    for text in texts:
        pairs = []
        for words, label in entries:
            one, other = set(text.split()), {word.lower() for word in words}
            shared = len(one & other) / len(one | other)
            alike = JaroWinkler.normalized_similarity(text, " ".join(words).lower())
            pairs.append((label, round(shared, 5), round(alike, 5) if alike >= 0.75 else 0.0))
        nearest = [max(similarity) for similarity in list(zip(*pairs))[1:]]
        for label, *found in pairs:
            found = [value if value == most else 0.0 for value, most in zip(found, nearest)]
            best[text, label] = tuple(map(max, zip(best.get((text, label), (0.0, 0.0)), found)))
    return {key: found for key, found in best.items() if any(found)}


def test_the_nearest_phrase_of_a_short_list_is_found():
    """It had to be among eight that share the rarest n-grams of characters: others were nearer by those."""
    entries = [(("new", "york"), ""), (("los", "angeles"), ""), (("acme", "foods"), ""), (("san", "jose"), "")]
    found = nearest(entries, ["york angles foods"])
    assert found == scanned(entries, ["york angles foods"]) == {("york angles foods", ""): (0.25, 0.0)}
    labelled = [(words, "ORG" if words[0] == "acme" else "CITY") for words, _ in entries]
    assert nearest(labelled, ["york acme"]) == {
        ("york acme", "CITY"): (0.33333, 0.0),
        ("york acme", "ORG"): (0.33333, 0.0),
    }


@pytest.mark.parametrize("seed", range(20))
def test_near_is_a_scan_of_the_list(seed, monkeypatch):
    """Words and labels repeat, in phrases and in spans; spans come in several portions."""
    monkeypatch.setattr("spacy_crf.features.phrases.PAIRS_AT_ONCE", 100)
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcD"), rng.integers(1, 6))) for _ in range(12)]
    entries = [
        (tuple(map(str, rng.choice(words, rng.integers(1, 4)))), str(rng.choice(["", "A", "B"]))) for _ in range(40)
    ]
    known = [*map(str.lower, words), "mark", "zzz"]
    texts = list({" ".join(rng.choice(known, rng.integers(1, 6))) for _ in range(30)})
    found, best = nearest(entries, texts), scanned(entries, texts)
    assert found.keys() == best.keys()
    assert all(found[key] == pytest.approx(best[key], abs=2e-5) for key in best)  # both are rounded


def test_near_a_long_list_finds_no_more_than_a_scan():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), 6)) for _ in range(150)]
    entries = [(tuple(map(str, rng.choice(words, rng.integers(1, 4)))), "") for _ in range(250)]
    texts = list({" ".join(words)[:-1] for words, _ in entries[:40]})  # the last letter is missing
    found, best = nearest(entries, texts, scan=False), scanned(entries, texts)
    assert all(value <= most for key in found for value, most in zip(found[key], best[key]))
    assert {key: alike for key, (_, alike) in found.items()} == {key: alike for key, (_, alike) in best.items()}


@pytest.mark.parametrize("scan, n", [(None, 1000), (None, 1001), (True, 1001), (False, 2)])
def test_long_lists_are_not_scanned_and_it_is_said(scan, n, caplog):
    gazetteer = Gazetteer((((f"w{i}",), "") for i in range(n)), scan=scan)
    assert Gazetteer.from_dict(gazetteer.to_dict()).scan == gazetteer.scan == (n == 1000 if scan is None else scan)
    with caplog.at_level("INFO"):
        SegmentFeatures(SegmentFeatureSet(["seg.near:list"])).set_lists({"list": gazetteer})
    said = f"seg.near:list compares a segment with the likeliest of {n} phrases" in caplog.text
    assert said != gazetteer.scan


@pytest.mark.parametrize(
    "attr, spans, best",
    [
        ("LOWER", {(0, 2), (3, 5)}, {(0, 2): 1.0, (3, 5): 1.0}),
        ("ORTH", {(3, 5)}, {(3, 5): 1.0}),
        ("SHAPE", {(3, 5)}, {(3, 5): 1.0}),
    ],
)
def test_phrases_compare_by_the_attribute_of_their_gazetteer(attr, spans, best):
    doc = doc_of("new york , New York")
    gazetteers = {"cities": Gazetteer([(("New", "York"), "")], attr=attr)}
    found = features_of(doc, ["seg.in:cities", "seg.near:cities"], gazetteers=gazetteers)
    assert {span for span, names in found.items() if "seg.in:cities=yes" in names} == spans
    shared = {span: names.get("seg.near:cities=jaccard", 0.0) for span, names in found.items()}
    assert {span: value for span, value in shared.items() if value == 1.0} == best


def test_phrases_may_be_words_that_are_symbols_of_spacy():
    """Such as "mark", the name of a dependency: its hash is another one, and it was never found."""
    gazetteers = {"names": Gazetteer([(("Mark",), ""), (("the", "MARK"), "")])}
    found = features_of(doc_of("the Mark"), ["seg.in:names", "seg.near:names"], longest=2, gazetteers=gazetteers)
    assert found[1, 2]["seg.in:names=yes"] == found[0, 2]["seg.in:names=yes"] == 1.0
    assert found[1, 2]["seg.near:names=jaccard"] == found[0, 2]["seg.near:names=jaccard"] == 1.0


@pytest.mark.parametrize("entries", [[], [((), "")]])
def test_empty_gazetteers_find_nothing(entries):
    doc = doc_of("New York")
    templates = ["seg.in:cities", "seg.near:cities"]
    assert features_of(doc, templates, gazetteers={"cities": Gazetteer(entries)}) == {}


def test_patterns_match_exactly_a_span():
    doc = doc_of("call 555 1234 now")
    pattern = [{"SHAPE": "ddd"}, {"SHAPE": "dddd"}]
    assert features_of(doc, ["seg.matches:phone"], patterns={"phone": pattern}) == {
        (1, 3): {"seg.matches:phone=yes": 1.0}
    }


def test_functions_of_spans():
    doc = doc_of("aa bbb")
    functions = {"size": lambda span: float(len(span.text)), "ends": lambda span: [span.text[0], span.text[-1]]}
    found = features_of(doc, ["seg.fn:size", "seg.fn:ends"], longest=2, functions=functions)
    assert found[0, 2] == {"seg.fn:size=0": 6.0, "seg.fn:ends=a": 1.0, "seg.fn:ends=b": 1.0}


def test_functions_of_spans_give_dicts_as_crfsuite_takes_them():
    functions = {"any": lambda span: {"w": [token.text for token in span], "n": len(span), "at": {"0": span.text[0]}}}
    found = features_of(doc_of("aa bbb"), ["seg.fn:any"], longest=2, functions=functions)
    assert found[0, 2] == {
        "seg.fn:any=w:aa": 1.0,
        "seg.fn:any=w:bbb": 1.0,
        "seg.fn:any=n": 2.0,
        "seg.fn:any=at:0:a": 1.0,
    }


def test_functions_of_docs_are_attributes_of_tokens():
    functions = {"half": lambda doc: [[len(token) / 2] for token in doc]}
    compiled = CompiledSegments(SegmentFeatureSet(["seg.first:fn:half"], functions=functions), {})
    columns = compiled.reader.read([doc_of("aa bbb")])
    features = compiled.templates["begins"].hash(columns)
    assert features.item_tokens.tolist() == [0, 1] and features.item_values.tolist() == [1.0, 1.5]


def test_spans_end_with_their_sentence():
    doc = doc_of("a b c d")
    doc[2].is_sent_start = True
    compiled = CompiledSegments(SegmentFeatureSet(["seg.text"]), {})
    builder = SpanIndexBuilder(compiled, FeatureIndex.empty())
    compiled.reader.keep_names(True)
    columns = compiled.reader.read([doc])
    builder.add([doc], columns, *all_spans(np.array([2, 2, 4, 4]), 0, 4, 4))
    index = builder.freeze(np.ones(len(builder), dtype=bool), doc.vocab)
    known = compiled.known_spans([doc], columns, 4, index, FeatureIndex.empty())
    assert sorted(index.names()) == [f"seg.text={text}" for text in ("a", "a b", "b", "c", "c d", "d")]
    assert known.listed.lengths.tolist() == [1, 2, 1, 1, 2, 1]


def test_token_templates_need_no_list_of_spans():
    features = SegmentFeatureSet(
        ["seg.first:lower|seg.before:lower", "seg.last:shape", "seg.after:lower", "seg.count:shape", "seg.length"]
    )
    assert [str(template) for template in features.begins] == ["seg.first:lower|seg.before:lower"]
    assert [str(template) for template in features.ends] == ["seg.last:shape", "seg.after:lower"]
    assert [str(template) for template in features.tokens] == ["seg.count:shape"]
    assert features.has_length and not features.spans and not features.span_items


@pytest.mark.parametrize("text", ["a a b", "a b a b", "a b c", "a a a a", "b a a b a"])
def test_contains_counts_a_value_once(text):
    doc = doc_of(text)
    compiled = CompiledSegments(SegmentFeatureSet(["seg.contains:lower"]), {})
    columns = compiled.reader.read([doc])
    hashes = compiled.tokens.hash(columns).hashes[:, 0]
    names = FeatureNames(["t"], np.zeros(3, np.int32), np.arange(4), np.zeros(3, np.int32), ["x"])
    index = FeatureIndex(np.unique(hashes), names)
    rows = index.rows(hashes)
    known = compiled.known_spans([doc], columns, 4, FeatureIndex.empty(), index)
    first = np.repeat(np.arange(len(doc)), np.diff(known.listed.starts)).tolist()
    taken_off = {}
    for n, (begin, length) in enumerate(zip(first, known.listed.lengths.tolist())):
        at = slice(*known.repeats.starts[n : n + 2])
        for row, value in zip(known.repeats.rows[at].tolist(), known.repeats.values[at].tolist()):
            taken_off[begin, begin + length, row] = taken_off.get((begin, begin + length, row), 0.0) + value
    for begin in range(len(doc)):
        for end in range(begin + 1, min(begin + 4, len(doc)) + 1):
            for row in set(rows[begin:end].tolist()):
                count = int((rows[begin:end] == row).sum())
                assert count + taken_off.get((begin, end, row), 0.0) == 1.0


@pytest.mark.parametrize("longest", [1, 2, 3, 5])
def test_contains_counts_an_item_once(longest):
    """Functions give a token any number of values; what a span has of each counts as much as the first of them."""
    given = {"a": ["x", "y"], "b": ["y"], "c": [], "d": ["x", "x"]}
    doc = doc_of("a b c d d a b")
    doc[4].is_sent_start = True
    functions = {"items": lambda doc: [given[token.text] for token in doc]}
    compiled = CompiledSegments(SegmentFeatureSet(["seg.contains:fn:items"], functions=functions), {})
    columns = compiled.reader.read([doc])
    compiled.reader.keep_names(True)
    builder = IndexBuilder(compiled.tokens, FeatureIndex.empty())
    builder.add(columns)
    index = builder.freeze(np.ones(len(builder), dtype=bool), doc.vocab)
    by_token = compiled.tokens.rows(columns, index)
    known = compiled.known_spans([doc], columns, longest, FeatureIndex.empty(), index)
    first = np.repeat(np.arange(len(doc)), np.diff(known.listed.starts)).tolist()
    numbers = {(b, b + k): n for n, (b, k) in enumerate(zip(first, known.listed.lengths.tolist()))}
    for begin, end in (
        (b, e) for s in ((0, 4), (4, 7)) for b in range(*s) for e in range(b + 1, min(b + longest, s[1]) + 1)
    ):
        counts = np.bincount(by_token.rows[by_token.starts[begin] : by_token.starts[end]], minlength=2).astype(float)
        present = counts > 0
        if (begin, end) in numbers:
            at = slice(*known.repeats.starts[numbers.pop((begin, end)) :][:2])
            np.add.at(counts, known.repeats.rows[at], known.repeats.values[at])
        assert counts.tolist() == present.astype(float).tolist()
    assert not numbers


@pytest.mark.parametrize(
    "template, settings, code",
    [
        ("seg.colour", {}, "CRF101"),
        ("seg.first", {}, "CRF101"),
        ("seg.length:lower", {}, "CRF101"),
        ("lower[0]", {}, "CRF101"),
        (7, {}, "CRF101"),
        ("seg.before:lower[-1]", {}, "CRF101"),
        ("seg.length[1]", {}, "CRF101"),
        ("seg.last:lower[2..1]", {}, "CRF102"),
        ("seg.count:lower|seg.length", {}, "CRF121"),
        ("seg.contains:ngrams3", {}, "CRF121"),
        ("seg.first:ngrams3|seg.length", {}, "CRF121"),
        ("seg.in:a|seg.near:a", {}, "CRF121"),
        ("seg.matches:zip", {}, "CRF106"),
        ("seg.fn:size", {"functions": {"width": len}}, "CRF106"),
        ("seg.first:colour", {}, "CRF106.*'seg.first:colour' names the attribute 'colour'"),
        ("seg.before:fn:age", {}, "CRF106.*'seg.before:fn:age'"),
        ("seg.matches:zip", {"patterns": {"zip": [{"SHAPES": "d"}]}}, "CRF610"),
        ("seg.matches:zip", {"patterns": {"zip": 3}}, "CRF610"),
        ("seg.matches:zip", {"patterns": {"zip": []}}, "CRF610"),
    ],
)
def test_mistakes_are_named(template, settings, code):
    with pytest.raises(ValueError, match=code) as error:
        SegmentFeatureSet([template], **settings)
    assert code == "CRF610" or str(template).split(":")[-1] in str(error.value)


def test_gazetteers_that_are_not_there_are_named():
    with pytest.raises(ValueError, match=r"CRF106.*seg\.near:cities"):
        CompiledSegments(SegmentFeatureSet(["seg.near:cities"]), {})


ODD = [
    [float("nan")],
    object(),
    True,
    np.bool_(True),
    b"x",
    10**400,
    10**5000,
    1e39,
    ["a", 1],
    {1, 2},
    [None],
    {"a": None},
    {"a": [1]},
]


@pytest.mark.parametrize("given", ODD, ids=range(len(ODD)))
def test_functions_that_give_nonsense_are_named(given):
    with pytest.raises(ValueError, match=r"CRF111.*'bad'"):
        features_of(doc_of("a"), ["seg.fn:bad"], functions={"bad": lambda span: given})


def test_functions_of_spans_give_text():
    with pytest.raises(ValueError, match=r"CRF131.*'seg.fn:bad'"):
        features_of(doc_of("a"), ["seg.fn:bad"], functions={"bad": lambda span: "\ud800"})


def test_templates_are_spelled_as_they_are_written():
    text = "seg.before:in:cities|seg.last:suffix3|seg.length"
    [template] = parse_segment_template(text.replace("|", " | "))
    assert str(template) == text


@registry.misc("test_segment_features.sizes")
def make_sizes():
    return lambda span: {"characters": float(len(span.text))}


def test_functions_are_named_in_the_config():
    """confection refused them where the type said that they are functions."""
    functions = {"sizes": {"@misc": "test_segment_features.sizes"}}
    block = {"@misc": "spacy_crf.segment_features.v1", "extra": ["seg.fn:sizes"], "functions": functions}
    feature_set = registry.resolve({"features": block})["features"]
    assert feature_set.functions["sizes"](doc_of("New York")[:]) == {"characters": 8.0}
