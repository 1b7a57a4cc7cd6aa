"""Random tables of rules, what they mean in plain Python, and how tables go wrong."""

import copy
from itertools import pairwise

SCOPES = ("doc", "sentence")


def random_rule(rng, labels, words, *, kinds=None):
    """A table that is right: numpy's generator, the labels and words that it may name."""
    kind = rng.choice(sorted(kinds or _MAKERS))
    table = {"rule": str(kind), **_MAKERS[str(kind)](rng, list(labels), list(words))}
    if kind != "same_text_same_label" and rng.random() < 0.4:
        table["weight"] = float(rng.choice([0.3, 2.0, -0.7]))
    return table


def score_of(automaton, events):
    """Score that an automaton gives to a sequence of events; -inf if it is forbidden."""
    state, total = 0, 0.0
    for event in events:
        total += float(automaton.scores[state, event])
        state = int(automaton.next[state, event])
        if state < 0:
            return float("-inf")
    return total + float(automaton.last[state])


def mutated(rng, table):
    """The same table with something wrong, mostly: a key less or more, a value of another type or size."""
    table = copy.deepcopy(table)
    key = str(rng.choice(sorted(table)))
    way = rng.integers(4)
    if way == 0:
        del table[key]
    elif way == 1:
        table[str(rng.choice(["m", "", "labels", "weight", "per", "if", "pattern", "function", "name"]))] = _odd(rng)
    elif way == 2 and isinstance(table[key], list):
        table[key][rng.integers(len(table[key]))] = _odd(rng)
    else:
        table[key] = _odd(rng)
    return table


def _odd(rng):
    values = [
        None, True, -1, 0, 3, 10**6, 10**30, 2.5, float("nan"), 1e308, "", "*", "O", "START", "x\ud800", [], [[]], [5], {},
        {"a": 1}, ["*"], ["A", "A"], [{"NONSENSE": 1}], [{"ORTH": {"REGEX": "("}}], [{"_": {"unknown": 1}}], [{}],
        {1, 2}, object(),
    ]  # fmt: skip
    return values[rng.integers(len(values))]


def _some(rng, labels):
    way = rng.integers(3)
    if way == 0:
        return "*"
    if way == 1 or len(labels) < 2:
        return str(rng.choice(labels))
    return _several(rng, labels, int(rng.integers(1, len(labels))))


def _several(rng, labels, n):
    return [str(label) for label in rng.choice(labels, size=n, replace=False)]


def _scope(rng):
    return {"per": str(rng.choice(SCOPES))} if rng.random() < 0.7 else {}


def _where(rng, words):
    texts = [_several(rng, words, int(rng.integers(1, 3))) for _ in range(rng.integers(1, 3))]
    if rng.random() < 0.5:
        return {"phrases": [" ".join(text) for text in texts]}
    return {"pattern": [[{"ORTH": word} for word in text] for text in texts]}


def _split(rng, labels):
    n = int(rng.integers(1, len(labels)))
    mixed = _several(rng, labels, len(labels))
    return {"if": mixed[:n], "then": mixed[n : n + int(rng.integers(1, len(labels) - n + 1))]}


def _length(rng):
    shortest, longest = int(rng.integers(2, 4)), int(rng.integers(1, 3))
    return [{"min": shortest}, {"max": longest}, {"min": 2, "max": 2}][rng.integers(3)]


_MAKERS = {
    "forbid_pair": lambda rng, labels, words: {"labels": [str(rng.choice([*labels, "O"])), str(rng.choice(labels))]},
    "allow_pairs": lambda rng, labels, words: {"labels": [_several(rng, labels, 2) for _ in range(rng.integers(1, 3))]},
    "follows": lambda rng, labels, words: {
        "label": _some(rng, labels), "after": _several(rng, [*labels, "O", "START"], int(rng.integers(1, 4)))
    },
    "order": lambda rng, labels, words: {"labels": _several(rng, labels, 2), **_scope(rng)},
    **{
        kind: lambda rng, labels, words: {"label": _some(rng, labels), "n": int(rng.integers(0, 4)), **_scope(rng)}
        for kind in ("at_most", "at_least", "exactly")
    },
    "in_one_piece": lambda rng, labels, words: {"label": _some(rng, labels), **_scope(rng)},
    **{kind: lambda rng, labels, words: {**_split(rng, labels), **_scope(rng)} for kind in ("requires", "excludes")},
    "length": lambda rng, labels, words: {"label": _some(rng, labels), **_length(rng)},
    **{
        kind: lambda rng, labels, words: {"label": _some(rng, labels), **_where(rng, words)}
        for kind in (
            "only_on", "always_on", "never_on", "only_after", "always_after", "never_after", "starts_with", "ends_with"
        )
    },
    "same_text_same_label": lambda rng, labels, words: _scope(rng),
}  # fmt: skip
KINDS = tuple(_MAKERS)


# --------------------------------------------------------------------------------------------------------- what they mean


def times_broken(table, spans, words, sentences, labels):
    """How often a labelling breaks a rule.

    spans: (begin, end, label) of each span, in their order.
    words: Of the text.
    sentences: The number of each token's sentence.
    labels: All that there are.
    """
    kind, wanted = table["rule"], _names(table.get("label"), labels)
    units = _units(spans, sentences)  # spans, and tokens outside of them
    touching = [(a, b) for a, b in pairwise(units) if sentences[a[0]] == sentences[b[0]]]
    of_label = [span for span in spans if span[2] in wanted]
    if kind == "forbid_pair":
        return sum([a[2], b[2]] == table["labels"] for a, b in touching)
    if kind == "allow_pairs":
        return sum("O" not in (a[2], b[2]) and [a[2], b[2]] not in table["labels"] for a, b in touching)
    if kind == "follows":
        before = {b: a[2] for a, b in touching}
        return sum(before.get(span, "START") not in _names(table["after"], labels) for span in of_label)
    if kind == "length":
        return sum(not table.get("min", 1) <= end - begin <= table.get("max", end) for begin, end, _ in of_label)
    if "phrases" in table or "pattern" in table:
        return _broken_where(kind, of_label, spans, wanted, _matches(table, words), sentences)
    per = table.get("per", "sentence" if kind == "order" else "doc")
    numbers = [0] if per == "doc" else sorted(set(sentences))
    parts = [[span for span in spans if per == "doc" or sentences[span[0]] == n] for n in numbers]
    return sum(_broken_in(kind, table, wanted, part, words, labels) for part in parts)


def _broken_in(kind, table, wanted, spans, words, labels):
    found = [label for _, _, label in spans]
    if kind == "order":
        furthest, broken = 0, 0
        for rank in (table["labels"].index(label) for label in found if label in table["labels"]):
            broken += rank < furthest
            furthest = max(furthest, rank)
        return broken
    if kind in ("at_most", "at_least", "exactly"):
        over = [found.count(label) - table["n"] for label in wanted]
        return sum((kind != "at_least") * max(n, 0) + (kind != "at_most") * max(-n, 0) for n in over)
    if kind == "in_one_piece":
        pairs = [pair for label in wanted for pair in pairwise(span for span in spans if span[2] == label)]
        return sum(a[1] < b[0] for a, b in pairs)
    if kind in ("requires", "excludes"):
        one, other = (any(label in _names(table[key], labels) for label in found) for key in ("if", "then"))
        return int(one and other == (kind == "excludes"))
    texts = {}
    for begin, end, label in spans:
        texts.setdefault(tuple(words[begin:end]), set()).add(label)
    return sum(len(of_text) > 1 for of_text in texts.values())


def _broken_where(kind, of_label, spans, wanted, matches, sentences):
    covered = {t for begin, end in matches for t in range(begin, end)}
    if kind.endswith("_after"):
        first = {t for t in range(len(sentences)) if t == 0 or sentences[t - 1] != sentences[t]}
        covered = {end for _, end in matches if end < len(sentences)} - first
        covered |= first if kind == "only_after" else set()
    if kind in ("always_on", "always_after"):
        return len(covered - {t for begin, end, label in spans if label in wanted for t in range(begin, end)})
    if kind == "starts_with":
        return sum(begin not in {first for first, _ in matches} for begin, _, _ in of_label)
    if kind == "ends_with":
        return sum(end not in {last for _, last in matches} for _, end, _ in of_label)
    return sum((t in covered) == kind.startswith("never") for begin, end, _ in of_label for t in range(begin, end))


def _names(value, labels):
    return list(labels) if value == "*" else [] if value is None else [value] if isinstance(value, str) else value


def _units(spans, sentences):
    inside = {t for begin, end, _ in spans for t in range(begin, end)}
    return sorted([*spans, *((t, t + 1, "O") for t in range(len(sentences)) if t not in inside)])


def _matches(table, words):
    patterns = [p.split() for p in table["phrases"]] if "phrases" in table else [
        [token["ORTH"] for token in pattern] for pattern in table["pattern"]
    ]  # fmt: skip
    return [
        (t, t + len(pattern))
        for pattern in patterns
        for t in range(len(words))
        if words[t : t + len(pattern)] == pattern
    ]
