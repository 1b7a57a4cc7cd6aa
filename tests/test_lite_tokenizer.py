"""Tokenizers in exports, which `spacy_crf.lite` replays like spaCy."""

import json
import random
import re
from collections.abc import Sequence

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokenizer import Tokenizer
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf.features.characters import Texts, break_properties
from spacy_crf.lite import LiteError
from spacy_crf.lite.tokenizer import _CLUSTER, CharacterTokenizer, RuleTokenizer, make_tokenizer
from spacy_crf.migrate.lite import _listed
from spacy_crf.migrate.lite_tokenizer import _BREAKS, tokenizer_content
from tests.hostile_texts import hostile_text
from tests.util import draws

# Special cases that users add: with white space, inside of affixes, of white space alone, and of parts of others
ADDED = {
    "a b": ["a ", "b"],
    "(don't)": ["(d", "on't)"],
    "New York": ["New York"],
    "x.": ["x."],
    ":)": [":", ")"],
    "foo-bar": ["foo", "-bar"],
    "a  b": ["a", " ", " b"],
    "b\na": ["b", "\na"],
    "\n\n": ["\n", "\n"],
    " ": [" "],
    "p.m. (I'm)": ["p.m.", " ", "(I'm)"],
    "(x-y) don't": ["(x-y) don't"],  # the last one, whose chunks spaCy keeps as its patterns cut them
}


def replayed(nlp: Language) -> RuleTokenizer | CharacterTokenizer:
    """The tokenizer of a pipeline by way of JSON."""
    return make_tokenizer(json.loads(json.dumps(tokenizer_content(nlp), default=_listed)))


def add_special_cases(nlp: Language, cases: dict[str, Sequence[str]]) -> None:
    for text, words in cases.items():
        nlp.tokenizer.add_special_case(text, [{"ORTH": word} for word in words])


def assert_same_tokens(nlp: Language, texts: Sequence[str]) -> None:
    tokenizer = replayed(nlp)
    for text in texts:
        words, starts, sentences = tokenizer.cut(text)
        doc = nlp.tokenizer(text)
        assert words == [token.text for token in doc], text
        assert starts == [token.idx for token in doc], text
        finds_sentences = getattr(nlp.tokenizer, "_has_sentences", False)
        assert sentences == ([bool(token.is_sent_start) for token in doc] if finds_sentences else None), text


@pytest.fixture(scope="module")
def english(special_words):
    nlp = spacy.blank("en")
    nlp.tokenizer.rules = special_words
    return nlp


@pytest.mark.parametrize("lang", ["de", "es", "hu"])
def test_hostile_texts_have_the_same_tokens(lang):
    """Hungarian has a `token_match`. (French has one of 1.4 million characters, that takes five seconds to compile.)"""
    nlp = spacy.blank(lang)
    rng = random.Random(1)
    assert_same_tokens(nlp, [hostile_text(rng, [*nlp.tokenizer.rules]) for _ in range(500)])


@pytest.mark.slow
def test_french_texts_have_the_same_tokens():
    nlp = spacy.blank("fr")
    rng = random.Random(1)
    assert_same_tokens(nlp, [hostile_text(rng, [*nlp.tokenizer.rules]) for _ in range(500)])


@pytest.mark.parametrize("faster_heuristics", [True, False])
def test_special_cases_that_users_add_give_the_same_tokens(english, faster_heuristics):
    nlp = spacy.blank("en")
    nlp.tokenizer.rules = english.tokenizer.rules
    nlp.tokenizer.faster_heuristics = faster_heuristics
    add_special_cases(nlp, ADDED)
    rng = random.Random(2)
    cases = [*english.tokenizer.rules, *20 * [*ADDED]]
    assert_same_tokens(nlp, [hostile_text(rng, cases) for _ in range(500)])


CHARACTERS = "ab.-'() \n\t\u00a0\x85é1\u0301"


@draws(60)
@given(
    st.lists(st.lists(st.text(CHARACTERS, min_size=1, max_size=3), min_size=1, max_size=3), max_size=6),
    st.lists(st.text(CHARACTERS, max_size=20), min_size=1, max_size=30),
    st.booleans(),
)
def test_any_special_cases_give_the_same_tokens(cases, texts, faster_heuristics):
    nlp = spacy.blank("en")
    nlp.tokenizer.faster_heuristics = faster_heuristics
    add_special_cases(nlp, {"".join(words): words for words in cases})
    joined = ["".join(words) for words in cases]
    assert_same_tokens(nlp, [*texts, *joined, f"({'.'.join(joined)})", " ".join(joined)])


AFFIXES = ["a", "^a", "a$", "[.'(]", r"^[.'(]+", r"[.')]$", r"\b", "(?<=a)b", "é", r"\d+", "b|ab", "^(?:a|ab)"]


@draws(60)
@given(
    st.tuples(*5 * [st.none() | st.sampled_from(AFFIXES)]),
    st.lists(st.sampled_from(["ab", "a.", "a-b", "a b", "(b", "aab"]), unique=True),
    st.lists(st.text("ab.'( é1", max_size=12), min_size=20, max_size=30),
)
def test_any_patterns_give_the_same_tokens(patterns, exceptions, texts):
    """Also patterns that match nothing, or elsewhere than at an edge."""
    prefix, suffix, infix, token_match, url_match = (pattern and re.compile(pattern) for pattern in patterns)
    nlp = spacy.blank("en")
    nlp.tokenizer = Tokenizer(
        nlp.vocab,
        {text: [{"ORTH": text[:1]}, {"ORTH": text[1:]}] for text in exceptions},
        prefix_search=prefix and prefix.search,
        suffix_search=suffix and suffix.search,
        infix_finditer=infix and infix.finditer,
        token_match=token_match and token_match.match,
        url_match=url_match and url_match.match,
    )
    assert_same_tokens(nlp, texts)


def test_long_chunks_and_more_chunks_than_are_kept_have_the_same_tokens(english):
    long_chunk = "word-".join(map(str, range(1000)))
    many_chunks = " ".join(map(str, range(11_000)))
    assert_same_tokens(english, [long_chunk, "a" * 100_000, "don't " * 1000, many_chunks, many_chunks])


def test_flags_of_patterns_are_exported():
    nlp = spacy.blank("en")
    nlp.tokenizer.token_match = re.compile("a.c # with any character\n", re.IGNORECASE | re.DOTALL | re.VERBOSE).match
    assert_same_tokens(nlp, ["A.C", "A-c", "a-b-c-", "b-c"])


def test_other_tokenizers_are_refused_by_name():
    nlp = spacy.blank("th", config={"nlp": {"tokenizer": {"@tokenizers": "spacy.Tokenizer.v1"}}})
    nlp.tokenizer = spacy.util.DummyTokenizer()
    with pytest.raises(ValueError, match=r"CRF791.*tokenizer.*DummyTokenizer"):
        tokenizer_content(nlp)


@pytest.mark.parametrize("function", [lambda text: None, re.compile("a").fullmatch])
def test_rules_that_are_functions_are_refused_by_name(function):
    nlp = spacy.blank("en")
    nlp.tokenizer.token_match = function
    with pytest.raises(ValueError, match=r"CRF791.*a function as token_match.*re\.compile\(\.\.\.\)\.match"):
        tokenizer_content(nlp)


def test_patterns_that_javascript_cannot_match_are_named():
    nlp = spacy.blank("en")
    nlp.tokenizer.token_match = re.compile(r"(a)\1").match
    in_javascript = tokenizer_content(nlp)["patterns_js"]
    assert in_javascript["token_match"] == {
        "untranslated": "token_match",
        "why": "it has GROUPREF, such as a reference to a group",
    }
    assert in_javascript["prefix"]["flags"] == "u"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "mecab"}, "tokenizers of the kind 'mecab'"),
        ({"patterns": {}}, "damaged"),
        ({"patterns": dict.fromkeys(["prefix", "suffix", "infix", "token_match", "url_match"], "(")}, "damaged"),
        ({"exceptions": [["ab", ["a"]]]}, "the exception 'ab'"),
        ({"exceptions": [["", []]]}, "the exception ''"),
        ({"exceptions": [["ab", 1]]}, "damaged"),
        ({"exceptions": [[["a"], "a"]]}, "the exception"),
    ],
)
def test_damaged_tokenizers_are_refused(english, change, message):
    with pytest.raises(LiteError, match=message):
        make_tokenizer({**tokenizer_content(english), **change})


# ------------------------------------------------------------------------------------------------------ trained tokenizers

SENTENCES = [
    "Don't go to New York, Bob said. I won't; they're 12 km away!",
    "the state-of-the-art  system\ncosts $3.50 (or more).  Is it worth it?",
    "新的系统很好。 กำลังมา ",
    "e-mail ann@example.org about 10-20 items.\n\nThanks :)",
]
RULES = {
    "always_split": ["-", "e", r"\s"],
    "never_split": [r"\d+[^ ]*", "a ."],
    "user_words": ["don't", "New York", "the", "กำ"],
}


def trained(cuts_words: bool, **settings) -> Language:
    """A pipeline whose tokenizer has learned spaCy's tokens; or pieces of three characters, which begin inside of words.

    settings: Those of the tokenizer.
    """
    nlp = spacy.blank("en", config={"nlp": {"tokenizer": {"@tokenizers": "spacy_crf.Tokenizer.v1", **settings}}})
    rules = spacy.blank("en").tokenizer
    if cuts_words:
        rules.infix_finditer = re.compile(r"(?<=\w\w\w)(?=\w)").finditer
    examples = []
    for text in SENTENCES:
        doc = rules(text)
        starts_sentence = [n == 0 or doc[n - 1].text in ".!?" for n in range(len(doc))]
        words = [token.text for token in doc]
        spaces = [bool(token.whitespace_) for token in doc]
        reference = Doc(nlp.vocab, words=words, spaces=spaces, sent_starts=starts_sentence)
        examples.append(Example(Doc(nlp.vocab, words=words, spaces=spaces), reference))
    nlp.config["initialize"]["tokenizer"] = {
        "min_count": 1,
        "max_iterations": 10,
        "lexicon": ["item", "items", "กำลัง", "系统"],
    }
    nlp.initialize(lambda: examples)
    return nlp


@pytest.mark.parametrize(
    ("cuts_words", "settings"),
    [
        (False, {}),
        (True, {"sentences": True}),
        (True, {"language_rules": True}),
        (False, {"language_rules": True, "sentences": True, **RULES}),
        (True, RULES),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_trained_tokenizers_find_the_same_tokens_and_sentences(cuts_words, settings):
    nlp = trained(cuts_words, **settings)
    rng = random.Random(3)
    texts = [hostile_text(rng, [*SENTENCES, "don't", "New York", "items", "กำลัง"]) for _ in range(150)]
    texts += [
        "",
        " ",
        "\n",
        "a",
        " a",
        "a ",
        "\u0301",
        " \u0301 a",
        "a" * 1000,
        "\u1100\u1161\u11a8각",
        "🇩🇪🇩🇪🇩 क्षि",
        *SENTENCES,
    ]
    assert_same_tokens(nlp, texts)


@draws(100)
@given(
    st.lists(st.integers(0, 0xD7FF) | st.integers(0xE000, 0x10FFFF) | st.sampled_from(range(len(_BREAKS))), max_size=30)
)
def test_grapheme_clusters_are_the_same(points):
    """Numbers of break properties stand for the first code point that has the property."""
    properties = break_properties()
    points = [int(np.argmax(properties == point)) if point < len(_BREAKS) else point for point in points]
    texts = Texts.of(["".join(map(chr, points))], joins_words=False)
    breaks = "".join(_BREAKS[properties[point]] for point in points)
    assert [match.start() for match in _CLUSTER.finditer(breaks)] == np.flatnonzero(texts.begins).tolist()


def test_a_trained_tokenizer_with_a_limit_is_refused():
    nlp = trained(cuts_words=False, longest=20)
    with pytest.raises(ValueError, match=r"CRF791.*the setting longest"):
        tokenizer_content(nlp)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("keys", ["2", "1"], "out of order"),
        ("keys", ["g"], "damaged"),
        ("rows", [1 << 40], "shape"),
        ("weights", [[0.5]], "do not fit together"),
        ("weights", [float("nan")], "damaged|a number is nan"),
        ("transitions", [[1.0]], "shape"),
        ("code_points", {}, "damaged"),
        ("always_split", ["("], "damaged"),
    ],
)
def test_damaged_trained_tokenizers_are_refused(key, value, message):
    content = json.loads(json.dumps(tokenizer_content(trained(cuts_words=False)), default=_listed))
    with pytest.raises(LiteError, match=message):
        make_tokenizer({**content, key: value})


@pytest.mark.parametrize("kind", ["rules", "characters"])
def test_a_tokenizer_of_a_damaged_file_is_refused_or_cuts_texts(english, kind):
    """Some value, anywhere in the content, is replaced by another one."""
    nlp = english if kind == "rules" else trained(cuts_words=False, sentences=True, language_rules=True, **RULES)
    text = json.dumps(tokenizer_content(nlp), default=_listed)
    rng = random.Random(4)
    others = [None, True, -1, 0, 2, 1 << 40, 0.5, float("nan"), "", "a", "(", [], [1], {}, [[0.5]], ["ab", ["a", "b"]]]
    n_refused = 0
    for _ in range(60):
        content = json.loads(text)
        place = content
        while True:
            key = rng.choice([*place]) if isinstance(place, dict) else rng.randrange(len(place))
            if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.3:
                break
            place = place[key]
        place[key] = rng.choice(others)
        try:
            tokenizer = make_tokenizer(content)
        except LiteError:
            n_refused += 1
            continue
        words = tokenizer.cut("Don't cost 12 km, a b!\n\nกำลัง 系统 ").words
        assert "".join(words).replace(" ", "") == "Don'tcost12km,ab!\n\nกำลัง系统"
    assert n_refused > 20
