"""The trainable tokenizer: what it learns, spaCy's contract for texts, rules, probabilities by enumeration, saving, bad input."""

import itertools
import pickle
import random
import re
import time

import numpy as np
import pytest
import spacy
from spacy.lang.en import English
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

from spacy_crf.features.characters import UNICODE, Lexicon, Texts, break_properties
from spacy_crf.models.characters import N_MARKS, Annotated, CharacterObjective
from spacy_crf.types import UNKNOWN_WORDS

LINES = ["ab cd ab", "cd abc cd", "abc ab. cd", "ab abc", "cd cd ab", "abc cd. ab ab"]


def make_nlp(lang="xx", **settings):
    tokenizer = {"@tokenizers": "spacy_crf.Tokenizer.v1", **settings}
    return spacy.blank(lang, config={"nlp": {"tokenizer": tokenizer}})


def references(vocab, lines=LINES, times=3):
    """Docs of words without spaces between them; a full stop is a word, and ends a sentence."""
    docs = []
    for line in lines * times:
        words = re.findall(r"[^ .]+|\.", line)
        starts = [n == 0 or words[n - 1] == "." for n in range(len(words))]
        docs.append(Doc(vocab, words=words, spaces=[False] * len(words), sent_starts=starts))
    return docs


def trained(lang="xx", docs=None, initialize=None, **settings):
    nlp = make_nlp(lang, **settings)
    docs = references(nlp.vocab) if docs is None else docs(nlp.vocab)
    examples = [Example(doc.copy(), doc) for doc in docs]
    nlp.config["initialize"]["tokenizer"] = {"max_iterations": 30, "min_count": 1, **(initialize or {})}
    nlp.initialize(lambda: examples)
    return nlp


@pytest.fixture(scope="module")
def nlp():
    return trained(sentences=True)


def words(doc):
    return [token.text for token in doc]


def boundaries(doc):
    return {token.idx for token in doc if not token.is_space}


# ------------------------------------------------------------------------------------------------------ what is learned


def test_learns_words_and_sentences(nlp):
    doc = nlp("abcab.cdab")
    assert words(doc) == ["abc", "ab", ".", "cd", "ab"]
    assert [sent.text for sent in doc.sents] == ["abcab.", "cdab"]
    examples = [Example(nlp.make_doc(doc.text), doc) for doc in references(nlp.vocab)]
    scores = nlp.evaluate(examples)
    assert scores["token_f"] == scores["sents_f"] == 1.0


def test_words_with_blanks_inside():
    def docs(vocab):
        lines = [["chu tich", "noi", "chu tich"], ["noi", "hai", "chu tich"], ["hai", "noi"]] * 5
        return [Doc(vocab, words=line) for line in lines]

    nlp = trained(docs=docs)
    assert words(nlp("hai chu tich noi")) == ["hai", "chu tich", "noi"]
    assert nlp.tokenizer._model.joins_words and nlp.tokenizer._model.has_blanks
    assert max(map(len, words(trained(docs=docs, longest=3)("hai chutich noi")))) == 3


def test_pipe_is_as_one_by_one(nlp):
    texts = ["abcab.cd", "", "  ", "cdcd", "ab\ncd", "abc"] * 3
    together = [(words(doc), list(doc.to_array("SENT_START"))) for doc in nlp.tokenizer.pipe(iter(texts), batch_size=4)]
    assert together == [(words(nlp(text)), list(nlp(text).to_array("SENT_START"))) for text in texts]


def test_language_rules_know_what_training_has_not(special_words, monkeypatch, tmp_path):
    """Where the tokens of spaCy's rules were right, they are found for abbreviations that the training data does not have."""
    monkeypatch.setattr(English.Defaults, "tokenizer_exceptions", special_words)
    rules = spacy.blank("en").tokenizer
    lines = ["Mr. Li met Ms. Ray.", "It is no. 5, e.g. the cat.", "Dr. Ray sat.", "A cat, a dog.", "We met Li."]
    new = "Prof. Li met Gov. Kim, Mt. Foo Inc. and a cow."
    expected = words(rules(new))

    def docs(vocab):
        return [rules(line) for line in lines * 5]

    nlp = trained("en", docs, language_rules=True)
    assert words(nlp(new)) == expected
    assert words(trained("en", docs)(new)) != expected
    texts = [new, "", " \n", "\0 a", *lines]
    assert [words(doc) for doc in nlp.tokenizer.pipe(texts)] == [words(nlp(text)) for text in texts]
    assert words(pickle.loads(pickle.dumps(nlp.tokenizer))(new)) == expected
    nlp.to_disk(tmp_path)
    assert words(spacy.load(tmp_path)(new)) == expected
    with pytest.raises(ValueError, match=r"CRF505.*language_rules"):
        make_nlp("en").tokenizer.from_bytes(nlp.tokenizer.to_bytes())
    assert any(name.startswith("rule tokens") for name, _ in nlp.tokenizer.explain("Mr. Li", top=1000)[0].features)


def test_lexicon_finds_words_that_training_has_not():
    nlp = make_nlp()
    rng = random.Random(0)

    def word():
        return "".join(rng.choice("klmnopqr") for _ in range(rng.randint(2, 4)))

    known = sorted({word() for _ in range(300)})
    new = [word for word in sorted({word() for _ in range(100)}) if word not in known]
    docs = [Doc(nlp.vocab, words=rng.choices(known, k=5), spaces=[False] * 5) for _ in range(300)]
    lines = [rng.choices(new, k=4) for _ in range(50)]
    found = {}
    for name, lexicon in (("without", None), ("with", known + new)):
        nlp.config["initialize"]["tokenizer"] = {"lexicon": lexicon, "max_iterations": 40}
        nlp.initialize(lambda: [Example(doc, doc) for doc in docs])
        found[name] = sum(words(nlp("".join(line))) == line for line in lines)
    assert found["with"] > 2 * found["without"] + 5


# ------------------------------------------------------------------------------------------------------ spaCy's contract

CLUSTERS = [
    (["e\u0301", "x"], "a mark"),
    (["\r\n", "\n"], "a line break"),
    (["\U0001f468\u200d\U0001f469\u200d\U0001f467", "a"], "joined pictographs"),
    (["\U0001f1e9\U0001f1ea", "\U0001f1eb\U0001f1f7", "\U0001f1e9"], "flags"),
    (["\u0915\u094d\u0937\u093f", "\u0915"], "a conjunct"),
    (["\u1100\u1161\u11a8", "\uac00\u11a8", "\u1100"], "Hangul"),
    (["\u0e01\u0e33", "\u0e40", "\u0e01\u0e48"], "Thai"),
    (["\u0600\u0661", "1"], "a number sign"),
    (["a", "\u200b", "b"], "a control character"),
    (["\u261d\U0001f3fd", "x"], "a skin colour"),
]


@pytest.mark.parametrize("clusters", [pytest.param(clusters, id=name) for clusters, name in CLUSTERS])
def test_grapheme_clusters(clusters):
    texts = Texts.of(["".join(clusters)], joins_words=False)
    assert np.flatnonzero(texts.begins).tolist() == [0, *itertools.accumulate(map(len, clusters))][:-1]


def test_clusters_are_those_of_another_program():
    r"""``\X`` of the package regex, whose tables are made from Unicode's files, for characters of all properties."""
    regex = pytest.importorskip("regex")
    rng = random.Random(0)
    properties = break_properties()
    is_surrogate = (np.arange(len(properties)) >> 11) == 0xD800 >> 11
    points_of_properties = [np.flatnonzero((properties == n) & ~is_surrogate) for n in np.unique(properties)]
    texts = ["a" + chr(point) for point in np.flatnonzero((properties > 0) & ~is_surrogate)]
    for _ in range(10_000):
        choices = rng.choices(points_of_properties, k=rng.randint(2, 6))
        texts.append("".join(chr(rng.choice(points)) for points in choices))
    found = Texts.of(texts, joins_words=False)
    starts = [
        start + match.start() for start, text in zip(found.text_starts, texts) for match in regex.finditer(r"\X", text)
    ]
    assert np.flatnonzero(found.begins).tolist() == starts, f"Unicode {UNICODE} here, another one in regex?"


def hostile_text(rng):
    pieces = ["ab", "cd", ".", " ", "  ", "\n", "\t", "\u0301", "\u200d", "\U0001f468", "\U0001f1e9", "\x00", "\u2028"]
    pieces += [
        "\u0e01\u0e33",
        "\u202e",
        "\u0627\u0644",
        "\u1100",
        "\u1161",
        "\r\n",
        "\xa0",
        "\u3000",
        "\u0600",
        "\ufeff",
    ]
    text = ""
    for _ in range(rng.randrange(12)):
        point = rng.randrange(0x110000)
        text += rng.choice(pieces) if rng.random() < 0.8 or 0xD800 <= point < 0xE000 else chr(point)
    return text


def test_hostile_texts_come_back_and_no_cluster_is_cut(nlp):
    rng = random.Random(0)
    texts = ["", " ", "   ", "\n", " a", "a ", "a  b", " \u0301"] + [hostile_text(rng) for _ in range(2000)]
    for text, doc in zip(texts, nlp.tokenizer.pipe(texts)):
        assert doc.text == text
        begins = Texts.of([text], joins_words=False).begins
        assert all(begins[token.idx] for token in doc)
        assert not text or doc[0].is_sent_start
        for token in doc:
            assert not token.is_space or token.i == 0 or not token.is_sent_start


@pytest.mark.parametrize("text", ["a  b", " a", "a \n b ", "  ", "\n", "a\tb", "a   ", "a\n\nb"])
def test_white_space_is_as_with_spacys_tokenizer(text):
    def docs(vocab):
        return [Doc(vocab, words=["a", "b", "b"]), Doc(vocab, words=["b", "a"])]

    ours = trained(docs=docs)(text)
    theirs = spacy.blank("xx")(text)
    assert [(token.text, token.whitespace_) for token in ours] == [(token.text, token.whitespace_) for token in theirs]


def test_a_long_text(nlp):
    nlp.max_length = 2_000_000
    text = "abcab.cd " * 120_000
    doc = nlp.make_doc(text)
    assert doc.text == text and len(doc) == 4 * 120_000


# ------------------------------------------------------------------------------------------------------ by enumeration


def labellings(nlp, text):
    """All segmentations of a text without white space into words and sentences, as sets, with their scores by the weights."""
    model = nlp.tokenizer._model
    texts = model.texts([text])
    scores = model.scores(texts)
    n_tags = len(scores.transitions)
    every = {}
    for tags in itertools.product(range(n_tags), repeat=len(texts.units)):
        if tags[0] == 0:
            score = sum(scores.emissions[range(len(tags)), tags])
            score += sum(scores.transitions[pair] for pair in itertools.pairwise(tags))
            begins = frozenset(texts.units[t] for t, tag in enumerate(tags) if tag != n_tags - 1)
            every[begins, frozenset(texts.units[t] for t, tag in enumerate(tags) if tag == 0)] = score
    return every


def posterior(every):
    total = np.logaddexp.reduce([*every.values()])
    return {key: np.exp(score - total) for key, score in every.items()}


def edges(words):
    return {0, *itertools.accumulate(map(len, words))}


# Letters of a script without upper and lower case, in which user words may touch others
HEBREW = str.maketrans("abcd", "\u05d0\u05d1\u05d2\u05d3")
RULES = [
    ({}, lambda words: True),
    ({"never_split": ["bc"]}, lambda words: not {2, 5} & edges(words)),
    ({"always_split": ["c"]}, lambda words: {2, 3, 5, 6} <= edges(words)),
    ({"user_words": ["bca", "bc"]}, lambda words: words == ["a", "bca", "bc"]),
    (
        {"never_split": ["ab"], "always_split": ["b"]},
        lambda words: {2, 5} <= edges(words) and not {1, 4} & edges(words),
    ),
    ({"longest": 2}, lambda words: max(map(len, words)) <= 2),
    ({"longest": 1}, lambda words: max(map(len, words)) == 1),
    ({"longest": 3, "never_split": ["abc"]}, lambda words: words == ["abc", "abc"]),
    # Rules that contradict each other
    ({"longest": 2, "never_split": ["abc"]}, lambda words: words == ["abc", "abc"]),
    ({"longest": 2, "never_split": ["bcab"]}, lambda words: words == ["a", "bcab", "c"]),
    ({"longest": 1, "user_words": ["bc"]}, lambda words: words == ["a", "bc", "a", "bc"]),
    (
        {"never_split": ["bc"], "always_split": ["c"]},
        lambda words: {3, 6} <= edges(words) and not {2, 5} & edges(words),
    ),
    ({"user_words": ["bc"], "never_split": ["ab"]}, lambda words: words == ["a", "bc", "a", "bc"]),
    ({"user_words": ["abca"], "always_split": ["c"], "longest": 2}, lambda words: words == ["abca", "b", "c"]),
]


@pytest.mark.parametrize("sentences", [False, True])
@pytest.mark.parametrize("rules, keeps", RULES)
def test_probabilities_rules_and_n_best(rules, keeps, sentences):
    def docs(vocab):
        return references(vocab, [line.translate(HEBREW) for line in LINES])

    rules = {
        name: [pattern.translate(HEBREW) for pattern in value] if isinstance(value, list) else value
        for name, value in rules.items()
    }
    nlp = trained(docs=docs, sentences=sentences, initialize={"max_iterations": 5}, **rules)
    text = "abcabc".translate(HEBREW)
    every = {}
    for (begins, sents), score in labellings(nlp, text).items():
        pieces = ["abcabc"[a:b] for a, b in itertools.pairwise([*sorted(begins), len(text)])]
        if keeps(pieces):
            every[begins, sents] = score
    expected = posterior(every)
    found = nlp.tokenizer.boundary_probabilities(text)
    for place in range(len(text)):
        of_words = sum(prob for (begins, _), prob in expected.items() if place in begins)
        of_sents = sum(prob for (_, sents), prob in expected.items() if place in sents)
        assert found.words[place] == pytest.approx(of_words, abs=1e-9)
        assert found.sentences[place] == pytest.approx(of_sents if sentences else 0.0, abs=1e-9)
    ranked = nlp.tokenizer.n_best(text, 1000)
    best_first = sorted(expected.values(), reverse=True)
    assert [prob for prob, _ in ranked] == pytest.approx(best_first, abs=1e-9)
    for prob, doc in ranked:
        sents = frozenset(sent.start_char for sent in doc.sents) if sentences else frozenset([0])
        key = frozenset(boundaries(doc)), sents
        if not sentences:
            [key] = [other for other in expected if other[0] == key[0]]
        assert prob == pytest.approx(expected[key], abs=1e-9)
    assert words(nlp(text)) == words(ranked[0][1])


def test_partial_annotation_is_exact(nlp):
    """The loss is log Z less the log-sum of the segmentations that the annotation allows."""
    text = "abcab.cd"
    model = nlp.tokenizer._model
    rng = np.random.default_rng(0)
    for _ in range(5):
        texts = model.texts([text])
        clamp = rng.random((len(texts.units), 3)) < 0.6
        clamp[np.arange(len(clamp)), rng.integers(0, 3, len(clamp))] = True
        clamp[0] = True
        objective = CharacterObjective(model, [Annotated(texts, clamp)], np.zeros(len(model.weights)))
        weights = objective.weights()
        loss, gradient = objective.evaluate(weights)
        every = labellings(nlp, text)
        allowed = []
        for (begins, sents), score in every.items():
            tags = [0 if t in sents else 1 if t in begins else 2 for t in range(len(text))]
            if clamp[range(len(tags)), tags].all():
                allowed.append(score)
        assert loss == pytest.approx(np.logaddexp.reduce([*every.values()]) - np.logaddexp.reduce(allowed), abs=1e-9)
        used = np.flatnonzero(gradient)
        for n in rng.choice(used, 5):
            moved = weights.copy()
            moved[n] += 1e-5
            slope = (objective.evaluate(moved)[0] - loss) / 1e-5
            assert slope == pytest.approx(gradient[n], abs=1e-4)


def test_lexicon_marks_by_enumeration():
    texts = Texts.of(["abab", "b"], joins_words=False)
    marks = Lexicon.of(["ab", "bab", "a", ""]).marks(texts)
    expected = np.zeros((len(marks), N_MARKS))
    for start, text in zip(texts.text_starts, ["abab", "b"]):
        for word in ("ab", "bab", "a"):
            for match in re.finditer(f"(?={word})", text):
                begin, column = start + match.start(), len(word) - 1
                expected[begin, column] = 1
                if match.start() + len(word) < len(text):
                    expected[begin + len(word), Lexicon.LONGEST + column] = 1
                expected[begin + 1 : begin + len(word), 2 * Lexicon.LONGEST + column] = 1
    assert np.array_equal([[mark >> bit & 1 for bit in range(N_MARKS)] for mark in marks.tolist()], expected)


# ------------------------------------------------------------------------------------------------------ annotation


def test_unknown_words_entities_and_a_lexicon_alone():
    def unknown(vocab):
        docs = references(vocab)
        for doc in docs[:9]:
            doc.spans[UNKNOWN_WORDS] = [Span(doc, 1, len(doc), "")]
        return docs

    def entities(vocab):
        docs = []
        for doc in references(vocab):
            characters = Doc(vocab, words=list(doc.text), spaces=[False] * len(doc.text))
            characters.set_ents([characters.char_span(t.idx, t.idx + len(t), "X") for t in doc if t.text == "ab"])
            docs.append(characters)
        return docs

    def raw(vocab):
        return [Doc(vocab, words=[doc.text]) for doc in references(vocab)]

    for docs, initialize in (
        (unknown, {}),
        (entities, {"annotation": "partial", "lexicon": ["abc", "cd", "."]}),
        (raw, {"annotation": "partial", "lexicon": ["ab", "abc", "cd", "."]}),
    ):
        nlp = trained(docs=docs, initialize=initialize)
        assert words(nlp("abcab.cdab")) == ["abc", "ab", ".", "cd", "ab"]


def test_boundaries_inside_of_clusters_are_moved(caplog):
    def docs(vocab):
        return [Doc(vocab, words=["ae", "\u0301", "b"], spaces=[False] * 3)] * 3

    nlp = trained(docs=docs)
    assert "3 boundaries inside of characters" in caplog.text
    assert words(nlp("ae\u0301b")) == ["ae\u0301", "b"]


# ------------------------------------------------------------------------------------------------------ rules, reasons


def test_user_words_of_cased_scripts_touch_no_letters():
    nlp = trained(user_words=["cat", "c++"])
    assert "cat" in words(nlp("(cat)")) and "cat" not in words(nlp("category"))
    assert words(nlp("c++c++")) == ["c++", "c++"]


@pytest.mark.parametrize(
    "rules, pair, example",
    [
        ({"longest": 2, "never_split": ["abc"]}, "never_split and longest", "xx abc"),
        ({"longest": 2, "user_words": ["abc"]}, "user_words and longest", "xx abc"),
        ({"always_split": ["b"], "never_split": ["abc"]}, "never_split and always_split", "xx abc"),
        ({"always_split": ["b"], "user_words": ["abc"]}, "user_words and always_split", "xx abc"),
        ({"never_split": ["xx abc"], "user_words": ["abc"]}, "user_words and never_split", "xx abc"),
    ],
)
def test_rules_that_contradict_each_other_are_named_once(nlp, caplog, rules, pair, example):
    ruled = make_nlp(sentences=True, **rules)
    ruled.tokenizer.from_bytes(nlp.tokenizer.to_bytes())
    for _ in range(2):
        doc = ruled("xx abc")
        assert "abc" in words(doc)
        [(prob, best)] = ruled.tokenizer.n_best("xx abc", 1)
        assert prob > 0 and words(best) == words(doc)
    [message] = [record.message for record in caplog.records if "CRFW993" in record.message]
    assert pair in message and example in message


def test_a_limit_cuts_the_runs_that_training_keeps_whole():
    def of_runs(vocab):
        return [Doc(vocab, words=["take", "apples", "."], spaces=[True, False, False])] * 4

    ruled = make_nlp(longest=4)
    ruled.tokenizer.from_bytes(trained(docs=of_runs).tokenizer.to_bytes())
    assert max(map(len, words(ruled("take apples.")))) <= 4
    assert "take" in words(ruled("take apples."))


def test_many_user_words_and_a_large_limit_take_little_time(nlp):
    text = "abcab.cdab" * 500
    seconds = []
    for settings in ({}, {"longest": 1000}, {"user_words": [f"w{number}" for number in range(10_000)]}):
        ruled = make_nlp(sentences=True, **settings)
        ruled.tokenizer.from_bytes(nlp.tokenizer.to_bytes())
        ruled("w77 ab")
        started = time.process_time()
        for _ in range(3):
            assert words(ruled(text)) == words(nlp(text))
        seconds.append(time.process_time() - started)
    assert max(seconds) < 3 * seconds[0] + 0.5


def test_user_words_are_found_from_left_to_right(nlp):
    ruled = make_nlp(sentences=True, user_words=["א", "אב", "בגד", "אבגדה"])
    ruled.tokenizer.from_bytes(nlp.tokenizer.to_bytes())
    assert words(ruled("אבגד"))[0] == "אב" and "בגד" not in words(ruled("אבגד"))
    assert words(ruled("אבגדהא")) == ["אבגדה", "א"]


def test_rules_cut_runs_that_training_keeps_whole():
    """Rules that the config got after the training."""

    def of_runs(vocab):
        return [Doc(vocab, words=["take", "5kg", "นี่ที่ไหน", "."], spaces=[True, True, False, False])] * 4

    learned = trained(docs=of_runs)
    assert words(learned("take 5kg.")) == ["take", "5kg", "."]
    ruled = make_nlp(always_split=["kg"], user_words=["ที่"])
    ruled.tokenizer.from_bytes(learned.tokenizer.to_bytes())
    assert words(ruled("take 5kg.")) == ["take", "5", "kg", "."]
    assert words(ruled("take นี่ที่ไหน.")) == ["take", "นี่", "ที่", "ไหน", "."]
    assert [reason for _, _, reason, _ in ruled.tokenizer.explain("5kg")] == ["text", "rule"]


def test_boundaries_behind_joiners_are_learned():
    """A zero-width non-joiner ends a cluster, and is no letter."""

    def of_joiners(vocab):
        return [Doc(vocab, words=["می\u200c", "روم"], spaces=[False, False])] * 4

    assert words(trained(docs=of_joiners)("می\u200cروم")) == ["می\u200c", "روم"]


def test_rules_keep_blanks_and_clusters(nlp):
    nlp = trained(never_split=["ab cd"], always_split=["e"])
    assert "ab cd" in words(nlp("cd ab cd ab"))
    doc = nlp("xe\u0301x")
    assert 2 not in boundaries(doc)


def test_explain(nlp):
    begins = nlp.tokenizer.explain("ab.cd ab", top=2)
    assert [begin.token for begin in begins] == words(nlp("ab.cd ab"))
    assert begins[0].reason == "text" and begins[1].reason == "weights" and begins[-1].reason == "blank"
    assert begins[0].prob == pytest.approx(1.0)
    assert all(len(begin.features) <= 2 for begin in begins)
    every = nlp.tokenizer.explain("ab.", top=1000)[1]
    texts = nlp.tokenizer._model.texts(["ab."])
    scores = nlp.tokenizer._model.scores(texts)
    assert sum(weight for _, weight in every.features) == pytest.approx(scores.emissions[2, 1], abs=1e-5)
    ruled = trained(always_split=["c"]).tokenizer.explain("abcd")
    assert "rule" in [begin.reason for begin in ruled]


def test_boundary_probabilities_of_tokens():
    nlp = trained(probabilities=True)
    doc = nlp("abc ab.")
    expected = nlp.tokenizer.boundary_probabilities(doc.text).words
    for token in doc:
        assert token._.crf_boundary_prob == pytest.approx(expected[token.idx])
    assert trained()("ab")[0]._.crf_boundary_prob is None


# ------------------------------------------------------------------------------------------------------ saving, bad input


def test_saving_loading_and_pickling(nlp, tmp_path):
    texts = ["abcab.cdab", " cd\n"]
    expected = [words(doc) for doc in nlp.pipe(texts)]
    nlp.to_disk(tmp_path / "model")
    loaded = spacy.load(tmp_path / "model")
    again = make_nlp(sentences=True).from_bytes(nlp.to_bytes())
    copied = pickle.loads(pickle.dumps(nlp.tokenizer))
    for tokenizer in (loaded.tokenizer, again.tokenizer, copied):
        assert [words(doc) for doc in tokenizer.pipe(texts)] == expected
        found = tokenizer.boundary_probabilities(texts[0]).words
        assert np.allclose(found, nlp.tokenizer.boundary_probabilities(texts[0]).words, atol=1e-12)
    assert [words(doc) for doc in loaded.pipe(texts, n_process=2)] == expected


def test_damaged_and_other_files(nlp, tmp_path, caplog):
    data = nlp.tokenizer.to_bytes()
    other = make_nlp(sentences=True).tokenizer
    for damaged, code in ((b"no", "CRF501"), (data[:-5], "CRF508"), (data[:40] + b"x" + data[41:], "CRF508")):
        with pytest.raises(ValueError, match=code):
            other.from_bytes(damaged)
    with pytest.raises(ValueError, match=r"CRF505.*sentences"):
        make_nlp().tokenizer.from_bytes(data)
    with pytest.raises(ValueError, match="CRF701"):
        other.from_disk(tmp_path)
    with pytest.raises(ValueError, match="CRF991"):
        other("ab")
    make_nlp("de", sentences=True).tokenizer.from_bytes(data)
    assert "CRFW992" in caplog.text


def test_an_untrained_tokenizer_says_so():
    nlp = make_nlp()
    with pytest.raises(ValueError, match=r"CRF991.*spacy_crf.Tokenizer.v1 was never trained"):
        nlp("ab cd")
    untrained = make_nlp().from_bytes(nlp.to_bytes())  # it can be saved
    with pytest.raises(ValueError, match="CRF991"):
        list(untrained.tokenizer.pipe(["ab"]))
    docs = references(nlp.vocab)
    nlp.initialize(lambda: [Example(nlp.make_doc(doc.text), doc) for doc in docs])  # as readers of corpora do
    assert words(nlp("abcab")) == ["abc", "ab"]


def test_a_trained_tokenizer_stays_as_it_is(nlp, tmp_path):
    """A base model gives its tokenizer to a pipeline whose components are to be trained."""
    nlp.to_disk(tmp_path)
    copied = make_nlp(sentences=True)
    copy = {"@callbacks": "spacy.copy_from_base_model.v1", "tokenizer": str(tmp_path)}
    copied.config["initialize"]["before_init"] = copy
    other = Doc(copied.vocab, words=["abcab"])
    copied.initialize(lambda: [Example(other, other)])
    assert copied.tokenizer.to_bytes() == nlp.tokenizer.to_bytes()
    copied.config["initialize"]["tokenizer"] = {"min_count": 1}
    with pytest.raises(ValueError, match="CRF993"):  # with settings it learns again
        copied.initialize(lambda: [Example(other, other)])


def test_a_tokenizer_without_examples_has_nothing_to_learn_from():
    with pytest.raises(ValueError, match="CRF995"):
        make_nlp().initialize()


def test_sentences_that_begin_with_white_space_are_learned():
    def of_lines(vocab):
        lines = ["ab", "cd", "\n", "cd", "ab", "\n", "ab"]
        return [Doc(vocab, words=lines, spaces=[False] * 7, sent_starts=[n in (0, 2, 5) for n in range(7)])] * 4

    nlp = trained(docs=of_lines, sentences=True)
    assert [sent.text for sent in nlp("cdab\ncd").sents] == ["cdab\n", "cd"]
    assert nlp.evaluate([Example(nlp.make_doc(doc.text), doc) for doc in of_lines(nlp.vocab)])["sents_f"] == 1.0


def test_sentences_need_texts_of_several():
    def of_one(vocab):
        return [Doc(vocab, words=["ab", "cd"], sent_starts=[True, False])] * 3

    with pytest.raises(ValueError, match=r"CRF993.*n-sents"):
        trained(docs=of_one, sentences=True)


def test_a_very_long_word_of_a_period_takes_little_time():
    def of_period(vocab):
        return [*references(vocab), Doc(vocab, words=["ab" * 20_000])]

    started = time.process_time()
    nlp = trained(docs=of_period, initialize={"max_iterations": 1})
    nlp("ab" * 20_000)
    assert time.process_time() - started < 10


@pytest.mark.parametrize("path", ["no such file", "a\0b"])
def test_paths_that_cant_be_read(nlp, path):
    with pytest.raises(ValueError, match="CRF701"):
        trained(initialize={"lexicon": path})
    with pytest.raises(ValueError, match="CRF701"):
        make_nlp().tokenizer.from_disk(path)


def test_what_it_cant_learn_from():
    nlp = make_nlp(sentences=True)
    empty = Doc(nlp.vocab, words=["  "])
    with pytest.raises(ValueError, match="CRF992"):
        nlp.initialize(lambda: [Example(empty, empty)])
    without = Doc(nlp.vocab, words=["ab", "cd"])
    with pytest.raises(ValueError, match="CRF993"):
        nlp.initialize(lambda: [Example(without, without)])


@pytest.mark.parametrize(
    "settings",
    [{"longest": 0}, {"never_split": ["("]}, {"user_words": [""]}, {"always_split": ["a", ""]}],
)
def test_settings_that_are_not_possible(settings):
    with pytest.raises(ValueError, match="CRF020"):
        make_nlp(**settings)


@pytest.mark.parametrize(
    "settings, code",
    [
        ({"annotation": "words"}, "CRF020"),
        ({"lexicon": "no such file"}, "CRF701"),
        ({"l1": -1}, "CRF020"),
        ({"min_count": 0}, "CRF020"),
    ],
)
def test_settings_of_initialize_that_are_not_possible(settings, code):
    with pytest.raises(ValueError, match=code):
        trained(initialize=settings)


def test_warnings_of_rules_and_lexicons_that_do_not_fit(caplog, tmp_path):
    trained(never_split=["cda"])
    assert "CRFW990" in caplog.text
    caplog.clear()
    trained(longest=2)  # words of the training data have 3 characters
    assert re.search(r"CRFW990.*12 boundaries.*abc", caplog.text)
    caplog.clear()
    trained(longest=3)
    assert "CRFW990" not in caplog.text
    (tmp_path / "words.txt").write_text("หมา\n\nแมว\n", encoding="utf8")
    trained(initialize={"lexicon": str(tmp_path / "words.txt")})
    assert "none of the 2 words" in caplog.text


def test_half_of_a_surrogate_pair(nlp):
    with pytest.raises(ValueError, match=r"CRF990.*character 2"):
        nlp("ab\ud800cd")


def test_rules_keep_their_dollars(tmp_path):
    """spaCy doubles each $ of a config when it saves a pipeline."""
    nlp = trained(user_words=["a$"], always_split=["c$"])
    for number in range(3):
        nlp.to_disk(tmp_path / str(number))
        nlp = spacy.load(tmp_path / str(number))
    assert words(nlp("aba$ab")) == ["ab", "a$", "ab"]
    assert 3 in boundaries(nlp("abxc"))


def test_a_damaged_lexicon_is_refused(nlp):
    model = nlp.tokenizer._model
    lengths = model.lexicon.lengths
    model.lexicon.lengths = np.full_like(lengths, -1)
    damaged = nlp.tokenizer.to_bytes()
    model.lexicon.lengths = lengths
    with pytest.raises(ValueError, match=r"CRF505.*impossible length"):
        make_nlp(sentences=True).tokenizer.from_bytes(damaged)


@pytest.mark.parametrize("code, settings", [("CRF994", {}), ("CRF993", {"sentences": True})])
def test_only_boundaries_are_no_annotation(code, settings):
    """A tokenizer that learned from them would cut everywhere."""

    def of_boundaries(vocab):
        if settings:
            return [Doc(vocab, words=["abc", "ab"], sent_starts=[True, None])]
        doc = Doc(vocab, words=[*"abcab"], spaces=[False] * 5)
        doc.spans[UNKNOWN_WORDS] = [doc[:]]
        return [doc]

    with pytest.raises(ValueError, match=code):
        trained(docs=of_boundaries, **settings)


def test_components_learn_on_the_tokens_that_it_finds(tmp_path):
    """Readers that keep their examples do not keep those of an untrained tokenizer."""
    nlp = make_nlp()
    docs = references(nlp.vocab)
    for doc in docs:
        doc.ents = [Span(doc, 0, 1, label="FIRST")]
    path = tmp_path / "train.spacy"
    DocBin(docs=docs).to_disk(path)
    nlp.add_pipe("crf_ner")
    nlp.config["initialize"]["tokenizer"] = {"min_count": 1, "max_iterations": 30}
    read = spacy.registry.get("readers", "spacy_crf.Corpus.v1")(path)
    nlp.initialize(lambda: read(nlp))
    assert [words(example.predicted) for example in read(nlp)] == [words(doc) for doc in docs]
