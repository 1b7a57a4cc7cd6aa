"""Docs that come with annotation, several settings at once: each answer against all labellings of tiny texts, which are left by
what is present, blocked, forced, and by the rules, in this order."""

import logging
import math
import subprocess
import sys
import threading
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.schemes import BEGIN, INSIDE, OUTSIDE
from tests import reference

WORDS = ["aa", "bb", "cc"]
LABELS = ["A", "B"]
FEATURES = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "lower[-1]", "bias"]}
EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES, "possible_states": True}
SEGMENTS = {
    "@architectures": "spacy_crf.SparseSegments.v1",
    "features": {"@misc": "spacy_crf.segment_features.v1", "templates": ["seg.lower", "seg.length"]},
}
KINDS = ["BILUO", "BIO", "IO", "IOB1", "segments", "tags"]

# Rules with what they say of a labelling: spans (begin, end, label), the words, and where sequences start
RULES = [
    ({"rule": "at_most", "label": "A", "n": 1}, lambda spans, words, starts: count(spans, "A") <= 1),
    ({"rule": "exactly", "label": "B", "n": 2}, lambda spans, words, starts: count(spans, "B") == 2),
    (
        {"rule": "never_on", "label": "*", "phrases": ["aa"]},
        lambda spans, words, starts: not any("aa" in words[begin:end] for begin, end, _ in spans),
    ),
    (
        {"rule": "forbid_pair", "labels": ["A", "B"]},
        lambda spans, words, starts: (
            not any(
                one[1] == other[0] and other[0] not in starts and (one[2], other[2]) == ("A", "B")
                for one, other in pairwise(spans)
            )
        ),
    ),
]


def count(spans, label):
    return sum(span[2] == label for span in spans)


# --------------------------------------------------------------------------------------------- components with any weights


@cache
def make(kind, rules=(), **settings):
    """A component whose weights are drawn at random."""
    nlp = spacy.blank("en")
    config = {"model": {"emissions": EMISSIONS}, "confidence": True, **settings}
    if rules:
        tables = [RULES[n][0] for n in rules]
        config["constraints"] = {"@misc": "spacy_crf.constraints.v1", "rules": tables}
    factory = {"segments": "semicrf_ner", "tags": "crf_tagger"}.get(kind, "crf_ner")
    if kind == "segments":
        config["model"] = {**config["model"], "segments": SEGMENTS, "longest_segment": 2}
    elif kind != "tags":
        config["scheme"] = kind
    pipe = nlp.add_pipe(factory, config=config)
    examples = []
    for label in LABELS:
        gold = Doc(nlp.vocab, words=WORDS)
        if kind == "tags":
            for token in gold:
                token.tag_ = label
        else:
            gold.ents = [Span(gold, 0, 2, label)]
        examples.append(Example(Doc(nlp.vocab, words=WORDS), gold))
    nlp.initialize(lambda: examples)
    rng = np.random.default_rng(len(kind))
    for node in pipe.model.walk():
        for name in node.param_names:
            if node.has_param(name):
                node.set_param(name, rng.normal(0.0, 1.5, node.get_param(name).shape).astype(np.float32))
    return nlp, pipe


class Case:
    """What a Doc brings, drawn at random; labels are A, B, and X, which the component does not know."""

    def __init__(self, rng, kind):
        self.kind = kind
        n = int(rng.integers(0, 5))
        self.words = rng.choice(WORDS, n).tolist()
        self.starts = [t == 0 or (t == 2 and n == 4 and rng.random() < 0.4) for t in range(n)]
        self.present, free = [], set(range(n))
        for begin, end, label in self._spans(rng, 2, [*LABELS, "X"]):
            span = (begin, begin + 1 if kind == "tags" else end, label)
            tokens = set(range(*span[:2]))
            fits = tokens <= free and not any(self.starts[begin + 1 : span[1]])
            if fits and not (kind == "IO" and any(touch(span, other) for other in self.present)):
                self.present.append(span)
                free -= tokens
        self.barred = [t for t in free if kind != "tags" and rng.random() < 0.1]  # blocked in doc.ents
        self.blocked = self._spans(rng, 2, ["", *LABELS, "X"])
        self.forced = self._spans(rng, 2, [*LABELS, *LABELS, "X"])

    def _spans(self, rng, most, labels):
        n = len(self.words)
        begins = rng.integers(0, n, rng.integers(0, most + 1)).tolist() if n else []
        return [(b, min(b + int(rng.integers(1, 3)), n), str(rng.choice(labels))) for b in begins]

    def doc(self, nlp):
        doc = Doc(nlp.vocab, words=self.words, sent_starts=self.starts)
        if self.kind == "tags":
            for begin, _, label in self.present:
                doc[begin].tag_ = label
        else:
            ents, barred = [Span(doc, *span) for span in self.present], [doc[t : t + 1] for t in self.barred]
            doc.set_ents(ents, blocked=barred, default="missing")
        for key, spans in (("crf_blocked", self.blocked), ("crf_forced", self.forced)):
            if spans:
                doc.spans[key] = [Span(doc, *span) for span in spans]
        return doc

    def every(self):
        """All labellings: tuples of spans."""
        if self.kind == "tags":
            paths = product([None, *LABELS], repeat=len(self.words))
            return [tuple((t, t + 1, tag) for t, tag in enumerate(path) if tag) for path in paths]
        found = labellings(len(self.words), 0, 2 if self.kind == "segments" else 4)
        found = [spans for spans in found if not any(any(self.starts[b + 1 : e]) for b, e, _ in spans)]
        if self.kind == "IO":
            parted = [any(touch(a, b) and not self.starts[b[0]] for a, b in pairwise(spans)) for spans in found]
            found = [spans for spans, is_parted in zip(found, parted) if not is_parted]
        return found

    def left(self, keep):
        """The labellings that are left by what the Doc brings, the tokens without a label, and whether anything had to yield.

        keep (bool): Whether what is present counts.
        """
        present = self.present if keep else []
        covered = {t for span in present for t in tokens_of(span)}
        others = {t for span in present if span[2] == "X" for t in tokens_of(span)} | set(self.barred if keep else ())
        blocked = [span for span in self.blocked if span[2] != "X"]
        never = {
            (t, label)
            for span in blocked
            for t in tokens_of(span) - covered
            for label in ([span[2]] if span[2] else LABELS)
        }
        found = [
            spans
            for spans in self.every()
            if {span for span in present if span[2] != "X"} <= set(spans)
            and not any((t, span[2]) in never for span in spans for t in tokens_of(span))
        ]
        yields = any(
            tokens_of(span) & tokens_of(other) and span[2] in ("", other[2]) for span in blocked for other in present
        )
        empty = set()
        if self.kind == "tags":
            empty = {t for t, _ in never if {(t, label) for label in LABELS} <= never}
            complete = len(self.words) - len(empty)
            found = [spans for spans in found if len(spans) == complete]
        else:
            found = [spans for spans in found if not any(others & tokens_of(span) for span in spans)]
        for span in self.forced:
            parts = [(t, t + 1, span[2]) for t in tokens_of(span)] if self.kind == "tags" else [span]
            with_it = [spans for spans in found if set(parts) <= set(spans)]
            if self.kind == "tags" and others & tokens_of(span):
                with_it = []  # which label a value stands for is not known
            yields |= not with_it
            found = with_it or found
        return found, empty, yields or bool(empty)


def tokens_of(span):
    return set(range(span[0], span[1]))


def touch(one, other):
    return one[2] == other[2] and (one[1] == other[0] or other[1] == one[0])


@cache
def labellings(n, begin, longest):
    """All tuples of spans of the tokens from begin to n, which do not overlap."""
    if begin >= n:
        return [()]
    found = list(labellings(n, begin + 1, longest))
    for end in range(begin + 1, min(begin + longest, n) + 1):
        found += [((begin, end, label), *rest) for label in LABELS for rest in labellings(n, end, longest)]
    return found


# ------------------------------------------------------------------------------------------------------------ the definition


class Expected:
    """What all labellings say of a case, under rules.

    candidates: The labellings that what the Doc brings, and then each rule in its order, leave.
    """

    def __init__(self, pipe, case, rules, keep=True):
        self.case = case
        self.n = len(case.words)
        self.candidates, self.empty, self.yields = case.left(keep)
        starts = {t for t in range(self.n) if case.starts[t]}
        self.relaxed = False
        for number in rules:
            kept = [spans for spans in self.candidates if RULES[number][1](spans, case.words, starts)]
            self.relaxed |= not kept and self.n > len(self.empty)  # nothing is said of no tokens
            self.candidates = kept or self.candidates
        self.scores = pipe.model.predict([Doc(pipe.vocab, words=case.words, sent_starts=case.starts)])
        self.states = [self._states(pipe, spans) for spans in self.candidates]
        scores = [self._score(spans, states) for spans, states in zip(self.candidates, self.states)]
        log_z = reference.log_sum(scores)
        self.probabilities = np.exp(np.array(scores) - log_z)
        # Several where a text says the same twice
        self.best = [self.candidates[n] for n in np.flatnonzero(self.probabilities > self.probabilities.max() - 1e-9)]
        self.marginals = np.zeros((self.n, len(pipe.tags())))
        for states, probability in zip(self.states, self.probabilities):
            tokens = np.flatnonzero(states >= 0)
            self.marginals[tokens, states[tokens]] += probability

    def of_span(self, span):
        return sum(p for spans, p in zip(self.candidates, self.probabilities) if span in spans)

    def of_labelling(self, spans):
        return sum(p for other, p in zip(self.candidates, self.probabilities) if other == spans)

    def posterior_values(self):
        """Expected number of right tags of each candidate."""
        tokens = np.arange(self.n)
        return [self.marginals[tokens[states >= 0], states[states >= 0]].sum() for states in self.states]

    def _states(self, pipe, spans):
        """State of each token, -1 where there is none."""
        label = np.full(self.n, -1)
        iob = np.full(self.n, OUTSIDE)
        for begin, end, name in spans:
            label[begin:end], iob[begin:end] = LABELS.index(name), INSIDE
            iob[begin] = BEGIN
        if self.case.kind == "tags":
            return label
        if self.case.kind == "segments":
            return 1 + label
        return pipe.annotation.scheme.encode(iob, label, np.asarray(self.scores.starts))

    def _score(self, spans, states):
        if self.case.kind == "segments":
            covered = {t for span in spans for t in tokens_of(span)}
            whole = sorted([(b, e, 1 + LABELS.index(label)) for b, e, label in spans] + [
                (t, t + 1, 0) for t in range(self.n) if t not in covered
            ])  # fmt: skip
            parts = [[s for s in whole if b <= s[0] < e] for b, e in reference.segment_sequences(self.scores)]
            used = [use for part in parts for use in reference.segment_uses(self.scores, part)]
            return sum(float(getattr(self.scores, name)[index]) for name, index in used)
        cuts = sorted({*self.scores.starts.tolist(), *self.empty, *(t + 1 for t in self.empty)})
        parts = [(begin, end) for begin, end in pairwise(cuts) if begin not in self.empty]
        return sum(reference.path_score(self.scores, begin, end, states[begin:end]) for begin, end in parts)


# ----------------------------------------------------------------------------------------------------------------- the checks


def found_in(doc, kind):
    """What a Doc says: spans with their probability."""
    if kind == "tags":
        return {(token.i, token.i + 1, token.tag_): token._.crf_prob for token in doc if token.tag_}
    return {(ent.start, ent.end, ent.label_): ent._.crf_prob for ent in doc.ents}


def check_doc(doc, pipe, case, expected):
    doc.to_bytes()
    found = found_in(doc, case.kind)
    present = set(case.present)
    assert present <= set(found)
    assert all(found[span] == 1.0 for span in present)
    if case.kind != "tags":
        assert all(doc[t].ent_iob_ == "B" and not doc[t].ent_type for t in case.barred)
        assert all(token.ent_iob for token in doc)
    unknown = {t for span in present if span[2] == "X" for t in tokens_of(span)}
    found = {span: p for span, p in found.items() if not unknown & tokens_of(span)}
    candidates = [{s for s in spans if not unknown & tokens_of(s)} for spans in expected.candidates]
    if pipe.cfg["decode"] == "spans":
        least = pipe.cfg["min_prob"]
        worth = [
            sum(expected.of_span(span) - least for span in spans if expected.of_span(span) >= least)
            for spans in candidates
        ]
        assert sum(p - least for p in found.values()) == pytest.approx(max(worth), abs=1e-6)
        assert any(set(found) <= spans for spans in candidates)
    elif pipe.cfg["min_prob"]:
        assert all(p >= pipe.cfg["min_prob"] - 1e-9 for p in found.values())
        assert any(set(found) <= spans for spans in candidates)
    elif pipe.cfg["decode"] == "posterior":
        values = expected.posterior_values()
        of_found = [value for value, spans in zip(values, candidates) if spans == set(found)]
        assert max(of_found) == pytest.approx(max(values))
    else:
        assert set(found) in [{s for s in spans if not unknown & tokens_of(s)} for spans in expected.best]
    for span, probability in found.items():
        assert probability == pytest.approx(expected.of_span(span), abs=1e-6)


def check_methods(doc, pipe, case, expected, keep):
    marginals, _ = pipe.marginals(doc, keep_annotation=keep)
    np.testing.assert_allclose(marginals, expected.marginals, atol=1e-6)
    empty = [t in expected.empty for t in range(len(doc))]
    np.testing.assert_allclose(marginals.sum(axis=1), np.where(empty, 0.0, 1.0), atol=1e-6)
    likely = {key(span): p for span, p in pipe.span_probabilities(doc, 0.0, keep_annotation=keep)}
    for span in {span for spans in expected.candidates for span in spans} | set(likely):
        assert likely.get(span, 0.0) == pytest.approx(expected.of_span(span), abs=1e-6)
    [(probability, best), *_] = pipe.n_best(doc, 3, keep_annotation=keep)
    assert tuple(map(key, best)) in expected.best
    assert probability == pytest.approx(expected.probabilities.max(), abs=1e-6)
    assert pipe.log_probability(doc, best, keep_annotation=keep) == pytest.approx(math.log(probability), abs=1e-6)
    for spans in pipe.sample(doc, 3, seed=0, keep_annotation=keep):
        assert expected.of_labelling(tuple(map(key, spans))) > 0.0


def key(span):
    return (span.start, span.end, span.label_)


WAYS = {
    "viterbi": {"decode": "viterbi", "min_prob": 0.0},
    "posterior": {"decode": "posterior", "min_prob": 0.0},
    "likely ones": {"decode": "viterbi", "min_prob": 0.6},
    "spans": {"decode": "spans", "min_prob": 0.2},
}


@pytest.mark.parametrize("rules", [(), (0, 3), (1, 2), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1))
def test_every_answer_is_that_of_the_labellings_that_are_left(seed, kind, rules, caplog):
    caplog.set_level(logging.WARNING, logger="spacy.spacy_crf")
    nlp, pipe = make(kind, rules)
    rng = np.random.default_rng((seed, sum(map(ord, kind)), len(rules)))
    cases = [Case(rng, kind) for _ in range(5)]
    every = [Expected(pipe, case, rules) for case in cases]
    for settings in WAYS.values():
        pipe.cfg.update(settings)
        for case, expected in zip(cases, every):
            caplog.clear()
            check_doc(pipe(case.doc(nlp)), pipe, case, expected)
            said = "CRFW604" in caplog.text or "CRFW420" in caplog.text
            assert said == expected.yields
            assert ("CRFW601" in caplog.text) == expected.relaxed
        for size in (3, len(cases)):
            docs = list(pipe.pipe((case.doc(nlp) for case in cases), batch_size=size))
            for doc, case, expected in zip(docs, cases, every):
                check_doc(doc, pipe, case, expected)
    pipe.cfg.update(WAYS["viterbi"])
    for case, expected in zip(cases, every):
        check_methods(case.doc(nlp), pipe, case, expected, True)
        check_methods(case.doc(nlp), pipe, case, Expected(pipe, case, rules, keep=False), False)


@pytest.mark.parametrize("kind", ["BILUO", "IOB1", "segments", "tags"])
def test_threads_and_processes_say_the_same(kind):
    nlp, pipe = make(kind, (0, 3))
    rng = np.random.default_rng(1)
    cases = [Case(rng, kind) for _ in range(40)]
    expected = [found_in(pipe(case.doc(nlp)), kind) for case in cases]

    def of_threads(numbers, found):
        for n in numbers:
            found[n] = found_in(pipe(cases[n].doc(nlp)), kind)

    found = {}
    threads = [threading.Thread(target=of_threads, args=(range(n, 40, 2), found)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(40)] == [approximately(of_case) for of_case in expected]
    docs = nlp.pipe([case.doc(nlp) for case in cases], n_process=2, batch_size=7)
    assert [found_in(doc, kind) for doc in docs] == [approximately(of_case) for of_case in expected]


def approximately(found):
    return {span: pytest.approx(probability) for span, probability in found.items()}


ASKED = {
    "__call__": lambda pipe, doc: pipe(doc),
    "pipe": lambda pipe, doc: list(pipe.pipe([doc])),
    "n_best": lambda pipe, doc: pipe.n_best(doc, 3),
    "marginals": lambda pipe, doc: pipe.marginals(doc),
    "sample": lambda pipe, doc: pipe.sample(doc, 3, seed=0),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_text_may_be_empty(kind, ask):
    """Under rules that it can't keep."""
    nlp, pipe = make(kind, (1, 2))
    ask(pipe, Doc(nlp.vocab))


# ------------------------------------------------------------------------------------------ one component after another


def test_extensions_are_there_from_the_import_on():
    """What a DocBin has of them could not be read: E046."""
    code = """if True:
        import spacy, spacy_crf
        from spacy.tokens import Doc
        from spacy.vocab import Vocab

        doc = Doc(Vocab(), ["a"])
        print(doc[:1]._.crf_prob, doc._.crf_evidence, doc._.crf_weight, "numba" in __import__("sys").modules)"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["None", "None", "1.0", "False"]


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_entities_that_another_component_leaves_no_room_for_are_told_once(factory, caplog):
    nlp = spacy.blank("en")
    gold = {"one": [(0, 2, "PER")], "two": [(1, 3, "ORG")]}
    for name, spans in gold.items():
        doc = Doc(nlp.vocab, words=["Ann", "Lee", "Foods"])
        doc.ents = [Span(doc, *span) for span in spans]
        pipe = nlp.add_pipe(factory, name)
        examples = [Example(Doc(nlp.vocab, words=["Ann", "Lee", "Foods"]), doc)]
        pipe.initialize(lambda examples=examples: examples)
        for _ in range(3):
            pipe.update(examples, sgd=LBFGS(l2=0.01))
    caplog.clear()
    for text in ("Ann Lee Foods", "Ann Lee Foods"):
        found = {(ent.text, ent.label_) for ent in nlp(text).ents}
        assert ("Ann Lee", "PER") in found and ("Lee Foods", "ORG") not in found
    [told] = [record.message for record in caplog.records if "CRFW423" in record.message]
    assert "two: 'Lee Foods' would be ORG" in told and "one found 'Ann Lee' (PER)" in told
    # What others have put there, and what both find, is as it was to be
    for disabled in ("one", "two"):
        caplog.clear()
        nlp.get_pipe("two").warned.clear()
        doc = nlp.make_doc("Ann Lee Foods")
        doc.ents = [Span(doc, 0, 2, "PER")] if disabled == "one" else []
        with nlp.select_pipes(disable=[disabled]):
            nlp.get_pipe("one" if disabled == "two" else "two")(doc)
        assert "CRFW423" not in caplog.text
