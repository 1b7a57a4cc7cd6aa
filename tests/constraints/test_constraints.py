"""Every rule against its definition, over all labellings of tiny texts; what is refused; and what yields when all is too much."""

import functools
import json
import math
from itertools import pairwise

import numpy as np
import pytest

from spacy_crf.arrays import join_sequences
from spacy_crf.constraints import decoding, rule_set, solver
from spacy_crf.constraints.automaton import SpanTags
from spacy_crf.constraints.rule import Match, PatternMatches, WordKinds
from spacy_crf.constraints.rule_set import Cache, RuleSet
from spacy_crf.constraints.rules import RULES
from spacy_crf.constraints.settings import constraints, read_rule
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.schemes import SCHEMES
from tests import reference
from tests.inference.test_spans import as_dict, scheme_scores

A, B = 0, 1
LABELS = ["A", "B"]
PATTERN = [{"LOWER": "x"}]  # what it matches is given below
COVERED, BEGINS, ENDS = (
    np.array([1, 1, 0, 0, 1], bool),
    np.array([1, 0, 0, 0, 1], bool),
    np.array([0, 1, 1, 0, 1], bool),
)
BEHIND = {t + 1 for t in np.flatnonzero(ENDS).tolist() if t not in (1, 4)}  # those two end a sentence
WORDS = np.array([7, 8, 7, 8, 7], dtype=np.uint64)


def neighbours(spans):
    """(span or None, span) for each span with what directly precedes it in its sentence."""
    for span in spans:
        yield (
            next((other for other in spans if other.end == span.begin and other.sentence == span.sentence), None),
            span,
        )


class Span:
    def __init__(self, begin, end, label, sentence, at_start):
        self.begin, self.end, self.label, self.sentence, self.at_start = begin, end, label, sentence, at_start


def count(spans, label):
    return sum(span.label == label for span in spans)


def by_sentence(spans, n=2):
    return [[span for span in spans if span.sentence == s] for s in range(n)]


def order_broken(spans):
    furthest, broken = 0, 0
    for span in spans:
        rank = [B, A].index(span.label)
        broken += rank < furthest
        furthest = max(furthest, rank)
    return broken


def pieces(spans, label):
    """Pieces of a label after the first."""
    return sum(b.end < c.begin for b, c in pairwise(span for span in spans if span.label == label))


def before_is(before, span, label):
    return before is not None and before.label == label


def clashing(spans):
    texts = {}
    for span in spans:
        texts.setdefault(tuple(WORDS[span.begin : span.end].tolist()), set()).add(span.label)
    return sum(len(labels) > 1 for labels in texts.values())


def on_tokens(wanted, spans):
    return sum(bool(wanted(t)) for span in spans for t in range(span.begin, span.end))


def bare(spans):
    """Tokens that no A covers."""
    return set(range(5)) - {t for span in spans if span.label == A for t in range(span.begin, span.end)}


# A rule, and how often a labelling of two sentences (of 2 and 3 tokens) breaks it.
TABLE = [
    ({"rule": "forbid_pair", "labels": ["A", "B"]}, lambda s: sum(b is not None and (b.label, c.label) == (A, B) for b, c in neighbours(s))),
    ({"rule": "forbid_pair", "labels": ["B", "B"]}, lambda s: sum(b is not None and (b.label, c.label) == (B, B) for b, c in neighbours(s))),
    ({"rule": "allow_pairs", "labels": [["A", "B"]]}, lambda s: sum(b is not None and (b.label, c.label) != (A, B) for b, c in neighbours(s))),
    ({"rule": "follows", "label": "A", "after": ["START", "B"]}, lambda s: sum(c.label == A and not (c.at_start or (b is not None and b.label == B)) for b, c in neighbours(s))),
    ({"rule": "follows", "label": "A", "after": ["O"]}, lambda s: sum(c.label == A and (c.at_start or b is not None) for b, c in neighbours(s))),
    ({"rule": "order", "labels": ["B", "A"]}, lambda s: sum(map(order_broken, by_sentence(s)))),
    ({"rule": "order", "labels": ["B", "A"], "per": "doc"}, order_broken),
    ({"rule": "at_most", "label": "A", "n": 1}, lambda s: max(0, count(s, A) - 1)),
    ({"rule": "at_most", "label": "*", "n": 1}, lambda s: sum(max(0, count(s, label) - 1) for label in (A, B))),
    ({"rule": "at_most", "label": "A", "n": 0, "per": "sentence"}, lambda s: count(s, A)),
    ({"rule": "at_most", "label": "A", "n": 1, "per": "sentence"}, lambda s: sum(max(0, count(part, A) - 1) for part in by_sentence(s))),
    ({"rule": "at_least", "label": "B", "n": 2}, lambda s: max(0, 2 - count(s, B))),
    ({"rule": "at_least", "label": ["A", "B"], "n": 1, "per": "sentence"}, lambda s: sum(max(0, 1 - count(part, label)) for part in by_sentence(s) for label in (A, B))),
    ({"rule": "exactly", "label": "A", "n": 1}, lambda s: abs(count(s, A) - 1)),
    ({"rule": "in_one_piece", "label": "A"}, lambda s: pieces(s, A)),
    ({"rule": "in_one_piece", "label": "*", "per": "sentence"}, lambda s: sum(pieces(part, label) for part in by_sentence(s) for label in (A, B))),
    ({"rule": "requires", "if": "A", "then": "B"}, lambda s: int(count(s, A) > 0 and count(s, B) == 0)),
    ({"rule": "requires", "if": "A", "then": "B", "per": "sentence"}, lambda s: sum(count(p, A) > 0 and count(p, B) == 0 for p in by_sentence(s))),
    ({"rule": "excludes", "if": "A", "then": "B"}, lambda s: int(count(s, A) > 0 and count(s, B) > 0)),
    ({"rule": "length", "label": "A", "min": 2}, lambda s: sum(c.label == A and c.end - c.begin < 2 for c in s)),
    ({"rule": "length", "label": "*", "max": 1}, lambda s: sum(c.end - c.begin > 1 for c in s)),
    ({"rule": "length", "label": "B", "min": 2, "max": 2}, lambda s: sum(c.label == B and c.end - c.begin != 2 for c in s)),
    ({"rule": "only_on", "label": "A", "pattern": PATTERN}, lambda s: on_tokens(lambda t: not COVERED[t], [c for c in s if c.label == A])),
    ({"rule": "always_on", "label": "A", "phrases": "x"}, lambda s: sum(COVERED[t] for t in bare(s))),
    ({"rule": "never_on", "label": "*", "phrases": ["x"]}, lambda s: on_tokens(lambda t: COVERED[t], s)),
    ({"rule": "only_after", "label": "A", "pattern": PATTERN}, lambda s: on_tokens(lambda t: t not in {0, 2, *BEHIND}, [c for c in s if c.label == A])),
    ({"rule": "always_after", "label": "A", "phrases": "x"}, lambda s: len(bare(s) & BEHIND)),
    ({"rule": "never_after", "label": "*", "phrases": ["x"]}, lambda s: on_tokens(lambda t: t in BEHIND, s)),
    ({"rule": "starts_with", "label": "A", "pattern": PATTERN}, lambda s: sum(c.label == A and not BEGINS[c.begin] for c in s)),
    ({"rule": "ends_with", "label": "A", "pattern": PATTERN}, lambda s: sum(c.label == A and not ENDS[c.end - 1] for c in s)),
    ({"rule": "custom", "function": "f"}, None),
    ({"rule": "same_text_same_label"}, clashing),
    ({"rule": "same_text_same_label", "per": "sentence"}, lambda s: sum(map(clashing, by_sentence(s)))),
]  # fmt: skip
STARTS = np.array([0, 2, 5])


def make_rules(tables, scheme, labels=LABELS, **settings):
    n_labels = len(labels)
    tags = SpanTags(labels, scheme.label_of_tag(n_labels), scheme.continues(n_labels))
    return RuleSet(constraints(tables, **settings), tags, scheme.transition_mask(n_labels))


def decode(rules, scores, doc_starts, facts, words=None, clamp=None):
    return decoding.decode(rules, decoding.Documents(scores, clamp, facts, words), np.array(doc_starts))


def facts_of(rules, size, *, seed=0):
    facts = PatternMatches()
    for rule in rules.rules:
        if rule.reads_pattern:
            facts[rule.place] = Match(COVERED, BEGINS, ENDS)
        if rule.reads_tags:
            allowed = np.random.default_rng(seed).random((5, size)) < 0.8
            allowed[:, 0] = True
            facts[rule.place] = allowed
    return facts


@functools.cache
def spans_of(scheme, tags):
    found = scheme.decode(np.array(tags, dtype=np.int32), STARTS)
    return [Span(b, e, label, int(b >= 2), b in (0, 2)) for b, e, label in zip(*(column.tolist() for column in found))]


def labellings(scores, scheme, breaks, clamp=None):
    """(score, tags, spans) of all labellings of the document: score less the price of every rule that is broken."""
    parts = [reference.paths(scores, begin, end, clamp) for begin, end in reference.sequences(scores)]
    found = []
    for first_score, first in parts[0]:
        for second_score, second in parts[1]:
            tags = first + second
            spans = spans_of(scheme, tags)
            score = first_score + second_score + breaks(np.array(tags, dtype=np.int32), spans)
            if score > -math.inf:
                found.append((score, tags, spans))
    return sorted(found, key=lambda item: -item[0])


def price(rule, times):
    return 0.0 if times == 0 else rule.price * int(times)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("number", range(len(TABLE)))
def test_rules_mean_what_they_say(number, name):
    table, times = TABLE[number]
    scheme = SCHEMES[name]
    only_hard = table["rule"] in ("same_text_same_label", "custom")
    for weight in (None,) if only_hard else (None, 0.7, -0.4):
        full = table if weight is None else {**table, "weight": weight}
        rules = make_rules([full], scheme)
        [rule] = rules.rules
        scores, spans = scheme_scores(scheme, 2, [2, 3], seed=number, spread=1.0)
        size = scores.emissions.shape[1]
        facts = facts_of(rules, size)

        def breaks(tags, found, rule=rule, facts=facts):
            if rule.kind == "custom":
                return 0.0 if facts[0][np.arange(5), tags].all() else -math.inf
            return price(rule, times(found))

        expected = labellings(scores, scheme, breaks)
        decoded = decode(rules, scores, np.array([0, 5]), facts, WORDS)
        assert not decoded.unfinished
        if not expected:
            assert decoded.relaxed == {0: [rule]}
            continue
        assert not decoded.relaxed
        ruled = rules.apply(scores, facts)
        assert tuple(decoded.tags.tolist()) == expected[0][1]
        if rule.global_:
            continue
        # Sums under the rule: its masks and all its automata.
        assert not rules.left_out
        joined = join_sequences(ruled)
        log_z = reference.log_sum([score for score, _, _ in expected])
        graph = rules.graph(rules.fitting)
        assert graph.log_partition(joined.scores)[0] == pytest.approx(log_z, abs=1e-9)
        [best] = graph.n_best(joined.scores, 4)
        assert [tuple(path[joined.tokens].tolist()) for _, path in best] == [tags for _, tags, _ in expected[:4]]
        in_spans, in_tags = {}, np.zeros((5, size))
        for score, tags, found in expected:
            p = math.exp(score - log_z)
            in_tags[np.arange(5), tags] += p
            for span in found:
                key = (span.begin, span.end, span.label)
                in_spans[key] = in_spans.get(key, 0.0) + p
        marginals = graph.marginals(joined.scores)
        np.testing.assert_allclose(marginals[joined.tokens, :-1], in_tags, atol=1e-9)
        joined_spans = spans._replace(continues=np.pad(spans.continues, (0, 1)))
        likely = as_dict(graph.likely_spans(joined.scores, joined_spans, 0.0))
        place = joined.tokens.tolist()
        for (b, e, label), p in in_spans.items():
            assert likely[place[b], place[e - 1] + 1, label] == pytest.approx(p, abs=1e-9)
        if not rules.automata:
            alone = as_dict(LinearChain().likely_spans(ruled, spans, 0.0))
            assert alone == {key: pytest.approx(p, abs=1e-9) for key, p in in_spans.items()}


def test_every_rule_is_in_the_table():
    assert {table["rule"] for table, _ in TABLE} == set(RULES)


TOGETHER = [
    {"rule": "at_most", "label": "*", "n": 1},
    {"rule": "requires", "if": "B", "then": "A"},
    {"rule": "length", "label": "A", "max": 2},
    {"rule": "order", "labels": ["B", "A"], "per": "doc", "weight": 0.5},
]


@pytest.mark.parametrize("way", ["search", "automata", "lattice"])
@pytest.mark.parametrize("seed", range(6))
def test_rules_together(seed, way, monkeypatch):
    max_states = 1 if way == "lattice" else 200
    if way != "search":
        monkeypatch.setattr(solver, "MOST_PREFIXES", 1)
    scheme = SCHEMES[list(SCHEMES)[seed % 4]]
    rules = make_rules(TOGETHER, scheme, max_states=max_states)
    scores, _spans = scheme_scores(scheme, 2, [2, 3], seed=seed, spread=2.0)

    def breaks(tags, found):
        times = [
            sum(max(0, count(found, label) - 1) for label in (A, B)),
            int(count(found, B) > 0 and count(found, A) == 0),
            sum(c.label == A and c.end - c.begin > 2 for c in found),
            order_broken(found),
        ]
        return sum(price(rule, n) for rule, n in zip(rules.rules, times))

    expected = labellings(scores, scheme, breaks)
    decoded = decode(rules, scores, np.array([0, 5]), PatternMatches(), WORDS)
    assert tuple(decoded.tags.tolist()) == expected[0][1]
    assert not decoded.relaxed


def test_rules_that_have_to_yield_share_the_time(monkeypatch):
    asked = []

    def out_of_time(self, active, texts, budget):
        asked.append(budget.left)
        budget.spend(budget.left)
        return None, False

    monkeypatch.setattr(solver.LatticeSolver, "solve", out_of_time)
    tables = [{"rule": "same_text_same_label", "name": str(n)} for n in range(8)]
    rules = make_rules(tables, SCHEMES["BIO"], time_limit=50.0)
    scores, _ = scheme_scores(SCHEMES["BIO"], 2, [5], seed=0)
    emissions = np.full_like(scores.emissions, -50.0)
    emissions[np.arange(5), [1, 0, 3, 0, 0]] = 0.0  # the same word is A, and then B
    words = np.array([7, 1, 7, 2, 3], dtype=np.uint64)
    decoded = decode(rules, scores._replace(emissions=emissions), [0, 5], PatternMatches(), words)
    assert [rule.name for rule in decoded.relaxed[0]] == [str(n) for n in range(8)] and decoded.unfinished == [0]
    assert asked[0] == pytest.approx(40.0, rel=0.01) and len(asked) == 9 and sum(asked) <= 50.0


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("kept", [None, [0, 2], [1, 3, 4]])
def test_facts_about_words_are_facts_about_their_tokens(name, kept):
    tables = [
        {"rule": "only_on", "label": "A", "phrases": "x", "weight": 0.5},
        {"rule": "always_on", "label": "*", "phrases": "x", "weight": -0.3},
        {"rule": "never_on", "label": ["A", "B"], "phrases": "x"},
        {"rule": "starts_with", "label": "B", "phrases": "x", "weight": 0.2},
        {"rule": "forbid_pair", "labels": ["A", "B"], "weight": 0.9},
        {"rule": "follows", "label": "B", "after": ["O", "START"], "weight": 0.1},
    ]
    scheme = SCHEMES[name]
    rules = make_rules(tables, scheme)
    scores, _ = scheme_scores(scheme, 2, [2, 3], seed=0, spread=1.0)
    rng = np.random.default_rng(0)
    places = {place: column for column, place in enumerate(range(4))}
    for n_kinds in (3, 3, 4):  # the fourth is met later
        words = WordKinds(rng.integers(0, n_kinds, 5).astype(np.int32), rng.random((n_kinds, 4)) < 0.5, places)
        facts = PatternMatches(words=words)
        matches = PatternMatches({place: facts[place] for place in places})
        for part in (slice(0, 5), np.array([1, 1, 4, 0, 3])):
            one, other = (rules.apply(scores, found.at(part), kept) for found in (facts, matches))
            for array, expected in zip(one[:4], other[:4]):
                np.testing.assert_allclose(array, expected, rtol=0, atol=1e-12)


def test_a_batch_is_decoded_document_by_document():
    scheme = SCHEMES["BIO"]
    rules = make_rules([{"rule": "at_most", "label": "*", "n": 1}, {"rule": "same_text_same_label"}], scheme)
    lengths, doc_starts = [4, 3, 0, 5, 2], np.array([0, 7, 7, 14])
    scores, _spans = scheme_scores(scheme, 2, lengths, seed=4)
    words = np.arange(14, dtype=np.uint64) % 3
    clamp = np.random.default_rng(0).random(scores.emissions.shape) < 0.9
    clamp[:, 0] = True
    together = decode(rules, scores, doc_starts, PatternMatches(), words, clamp)
    first = scores._replace(emissions=scores.emissions[:7], starts=np.array([0, 4, 7]))
    second = scores._replace(emissions=scores.emissions[7:], starts=np.array([0, 5, 7]))
    alone = [
        decode(rules, part, np.array([0, 7]), PatternMatches(), of_words, of_clamp).tags
        for part, of_words, of_clamp in ((first, words[:7], clamp[:7]), (second, words[7:], clamp[7:]))
    ]
    assert together.tags.tolist() == np.concatenate(alone).tolist()


def test_only_documents_that_break_a_rule_are_searched():
    scheme = SCHEMES["IO"]
    rules = make_rules([{"rule": "at_most", "label": "A", "n": 1}], scheme)
    scores, _ = scheme_scores(scheme, 2, [5, 5], seed=0)
    for array in scores[:4]:
        array[...] = np.where(array > -np.inf, 0.0, -np.inf)
    scores.emissions[:] = [3.0, 0.0, 0.0]
    scores.emissions[[1, 6, 8], 1] = 9.0
    documents = decoding.Documents(scores, None, PatternMatches(), None)
    decoded, breaking = decoding.decode_by_masks(rules.structure, rules, documents, scores.starts, None)
    assert decoded.tags.tolist() == [0, 1, 0, 0, 0, 0, 1, 0, 1, 0]
    assert breaking == [1]


def test_a_cache_may_be_emptied_between_two_looks(monkeypatch):
    """Another thread, for which it was full, emptied it: KeyError."""
    cache = Cache()

    class Key:
        looks = 0

        def __hash__(self):
            self.looks += 1
            if self.looks > 1:
                cache.clear()
            return 1

    key = Key()
    assert cache.find(key, lambda: "made") == "made" and len(cache) == 1
    key.looks = 0
    assert cache.find(key, lambda: "made again") == "made"
    small = Cache()
    monkeypatch.setattr(rule_set, "MOST_KEPT", 2)
    assert [small.find(n, lambda n=n: -n) for n in (1, 2, 3, 1)] == [-1, -2, -3, -1] and len(small) == 2


def test_later_rules_yield():
    scheme = SCHEMES["BIO"]
    scores, _spans = scheme_scores(scheme, 2, [3], seed=0)
    tables = [
        {"rule": "at_least", "label": "A", "n": 2, "name": "two"},
        {"rule": "at_least", "label": "B", "n": 2, "name": "too many for three tokens"},
        {"rule": "at_most", "label": "A", "n": 2, "name": "no more"},
    ]
    rules = make_rules(tables, scheme)
    decoded = decode(rules, scores, np.array([0, 3]), PatternMatches(), WORDS)
    assert [rule.name for rule in decoded.relaxed[0]] == ["too many for three tokens"]
    labels = scheme.decode(decoded.tags, np.array([0, 3])).label.tolist()
    assert labels.count(A) == 2


def test_the_graph_knows_when_rules_contradict_each_other():
    scheme = SCHEMES["BIO"]
    contradiction = [
        {"rule": "at_least", "label": "A", "n": 2},
        {"rule": "at_most", "label": "A", "n": 1, "name": "few"},
    ]
    with pytest.raises(ValueError, match=r"CRF613.*'few'"):
        make_rules(contradiction, scheme)
    make_rules([contradiction[0], {**contradiction[1], "weight": 1.0}], scheme)
    impossible = [{"rule": "at_least", "label": "A", "n": 1}, {"rule": "follows", "label": "A", "after": ["A"]}]
    with pytest.raises(ValueError, match="CRF613"):
        make_rules(impossible, scheme)


def test_sizes_of_automata_are_told():
    scheme = SCHEMES["BIO"]
    rules = make_rules([*TOGETHER, {"rule": "forbid_pair", "labels": ["A", "B"]}], scheme)
    assert [how for _, how, _ in rules.enforcement()] == [
        "2 automata of 2 states",
        "automaton of 3 states",
        "automaton of 3 states",
        "automaton of 2 states",
        "mask",
    ]
    small = make_rules([{"rule": "at_most", "label": "*", "n": 3}], scheme, max_states=5)
    assert not small.fitting and small.left_out == [small.rules[0]] and small.enforcement()[0][2] == "no"


REFUSED = [
    ("at most one", "CRF601"),
    ({"label": "A"}, "CRF601"),
    ({"rule": "atmost", "label": "A", "n": 1}, "CRF605.*'atmost'.*Rules: forbid_pair.*did you mean 'at_most'"),
    ({"rule": "at_most", "label": "A", "m": 1}, "CRF605.*unknown: m.*label, n, per"),
    ({"rule": "at_most", "label": "A"}, "CRF605.*missing: n"),
    ({"rule": "at_most", "label": "A", "n": -1}, "CRF020.*n = -1.*whole number"),
    ({"rule": "at_most", "label": "A", "n": True}, "CRF020"),
    ({"rule": "at_most", "label": "", "n": 1}, "CRF020"),
    ({"rule": "at_most", "label": "A", "n": 1, "weight": math.nan}, "CRF020.*weight = nan"),
    ({"rule": "at_most", "label": "A", "n": 1, "weight": math.inf}, "CRF020.*weight = inf"),
    ({"rule": "at_most", "label": "A", "n": 1, "per": "page"}, "CRF020.*'doc' or 'sentence'"),
    ({"rule": "forbid_pair", "labels": ["A"]}, "CRF020.*two labels"),
    ({"rule": "allow_pairs", "labels": ["A", "B"]}, "CRF020"),
    ({"rule": "order", "labels": ["A", "A"]}, "CRF020.*different"),
    ({"rule": "requires", "if": "A", "then": "A"}, "CRF605.*same label"),
    ({"rule": "length", "label": "A", "min": 3, "max": 2}, "CRF605"),
    ({"rule": "length", "label": "A"}, "CRF605"),
    ({"rule": "only_on", "label": "A"}, "CRF605.*'pattern' or 'phrases'"),
    ({"rule": "only_on", "label": "A", "pattern": "x"}, "CRF020.*Matcher pattern"),
    ({"rule": "same_text_same_label", "weight": 1.0}, "CRF605"),
    ({"rule": "at_most", "label": "A", "n": 1, "name": ""}, "CRF020"),
    ({"rule": "at_most", "label": "A", "n": None}, "CRF605.*missing: n"),
    ({"rule": "at_most", "label": "A", "n": 1, "weight": 1e308}, "CRF020.*from -1e[+]09"),
    ({"rule": "only_on", "label": "A", "pattern": [5]}, "CRF020.*Matcher pattern"),
    ({"rule": "only_on", "label": "A", "phrases": ["\ud800"]}, "CRF605.*no text that can be written"),
    ({"rule": "only_on", "label": "A", "pattern": [{"ORTH": {"IN": {1, 2}}}]}, "CRF605"),
    ({"rule": "at_most", "label": "A", "n": 10**30}, "CRF605.*too large"),
    ({"rule": "at_most", "label": "A", "n": 1, 5: 1}, "CRF605.*the key 5"),
    ({"rule": "only_on", "label": "A", "pattern": eval("[" * 50 + "{}" + "]" * 50)}, "CRF605.*nested"),
]


@pytest.mark.parametrize(("table", "message"), REFUSED)
def test_bad_rules_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        read_rule(table)


def test_unknown_labels_are_refused():
    with pytest.raises(ValueError, match=r"CRF846.*'C'.*Labels: A, B"):
        make_rules([{"rule": "requires", "if": "A", "then": "C"}], SCHEMES["BIO"])


def test_rules_from_a_file(tmp_path):
    path = tmp_path / "rules.jsonl"
    path.write_text(json.dumps(TABLE[0][0]) + "\n\n" + json.dumps(TABLE[5][0]) + "\n", encoding="utf8")
    read = constraints([TABLE[7][0]], path=str(path))
    assert [rule.kind for rule in read.rules] == ["at_most", "forbid_pair", "order"]
    assert [rule.place for rule in read.rules] == [0, 1, 2]
    path.write_text(json.dumps(TABLE[0][0]) + "\n{no json}\n", encoding="utf8")
    with pytest.raises(ValueError, match=r"CRF701: Line 2 of the rules in .*rules.jsonl"):
        constraints(path=str(path))
    path.write_text("[]\n", encoding="utf8")
    with pytest.raises(ValueError, match="CRF701"):
        constraints(path=str(path))
    path.write_text("[" * 100_000, encoding="utf8")
    with pytest.raises(ValueError, match="CRF701"):
        constraints(path=str(path))
    table = {"rule": "never_on", "label": "A", "phrases": "a\u2028b"}  # not the end of a line
    path.write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8-sig")
    assert constraints(path=str(path)).tables == [table]
    with pytest.raises(ValueError, match="CRF701"):
        constraints(path=str(tmp_path / "none.jsonl")).require_file()
    for settings in ({"max_states": 0}, {"time_limit": math.nan}):
        with pytest.raises(ValueError, match="CRF020: constraints: "):
            constraints([], **settings)
    for settings in ({"rules": {"rule": "at_most"}}, {"rules": "at_most"}, {"path": 5}):
        with pytest.raises(ValueError, match="CRF020: constraints: "):
            constraints(**settings)
