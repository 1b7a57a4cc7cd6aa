"""Every scheme against brute force: a tag sequence is valid exactly if it is what some set of spans encodes to."""

from itertools import pairwise, product

import numpy as np
import pytest

from spacy_crf.schemes import BEGIN, INSIDE, MISSING, OUTSIDE, SCHEMES, choose_scheme, get_scheme

LABELS = ["PER", "a-b c"]
LENGTH = 4


def segmentations(length, start=0):
    """All sets of labelled, non-overlapping spans of a sequence."""
    if start == length:
        yield []
        return
    for rest in segmentations(length, start + 1):
        yield rest
    for end in range(start + 1, length + 1):
        for label in range(len(LABELS)):
            for rest in segmentations(length, end):
                yield [(start, end, label), *rest]


def annotate(spans, length):
    iob, label = np.full(length, OUTSIDE), np.zeros(length, dtype=np.int64)
    for start, end, name in spans:
        iob[start:end], label[start:end] = INSIDE, name
        iob[start] = BEGIN
    return iob, label


def is_valid(mask, tags):
    return mask.first[tags[0]] and mask.last[tags[-1]] and all(mask.transitions[i, j] for i, j in pairwise(tags))


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_mask_allows_exactly_what_spans_encode_to(scheme):
    starts = np.array([0, LENGTH])
    encoded = {tuple(scheme.encode(*annotate(spans, LENGTH), starts)) for spans in segmentations(LENGTH)}
    mask = scheme.transition_mask(len(LABELS))
    tags = range(len(scheme.tags(LABELS)))
    assert {path for path in product(tags, repeat=LENGTH) if is_valid(mask, path)} == encoded


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_round_trip(scheme):
    for spans in segmentations(LENGTH):
        touching = any(end == start and a == b for (_, end, a), (start, _, b) in pairwise(spans))
        if scheme.name == "IO" and touching:
            continue  # IO can't part them
        iob, label = annotate(spans, LENGTH)
        # Twice, one after the other: a batch behaves as its sequences do.
        starts = np.array([0, LENGTH, LENGTH, 2 * LENGTH])
        tags = scheme.encode(np.tile(iob, 2), np.tile(label, 2), starts)
        found = [tuple(map(int, span)) for span in zip(*scheme.decode(tags, starts))]
        assert found == spans + [(start + LENGTH, end + LENGTH, name) for start, end, name in spans]
        assert scheme.iob(tags, starts).tolist() == np.tile(iob, 2).tolist()


def paths_of(scheme, allowed, starts):
    """All tag sequences under a clamp that was read, and how many steps it took beside the tags."""
    mask, continues = scheme.transition_mask(len(LABELS)), scheme.continues(len(LABELS))
    label_of = scheme.label_of_tag(len(LABELS))
    clamp, steps = scheme.encode_clamp(allowed, starts)
    assert clamp.shape == (LENGTH, len(label_of))

    def is_open(path, token, label, goes_on):
        return label_of[path[token]] != label or continues[path[token - 1], path[token]] != goes_on

    paths = product(*(np.flatnonzero(row).tolist() for row in clamp))
    found = {path for path in paths if is_valid(mask, path) and all(is_open(path, *step) for step in steps.tolist())}
    return found, len(steps)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_missing_annotation_is_a_wider_clamp(scheme):
    """The clamp with holes allows exactly the tag sequences of all span sets that agree with the known tokens."""
    starts = np.array([0, LENGTH])
    for known in [[(1, 3, 0)], [(0, 1, 1)], [(0, 1, 0), (1, 2, 0)], [(2, 3, 1), (3, 4, 0)], []]:
        if scheme.name == "IO" and touches_same_label(known, known):
            continue
        iob, label = annotate(known, LENGTH)
        iob[iob == OUTSIDE] = MISSING
        allowed, n_steps = paths_of(scheme, scheme.clamp(iob, label, starts, len(LABELS)), starts)
        agreeing = [spans for spans in segmentations(LENGTH) if set(known) <= set(spans)]
        if scheme.name == "IO":  # the neighbours of an annotated entity have another label
            agreeing = [spans for spans in agreeing if not touches_same_label(spans, known)]
        assert allowed == {tuple(scheme.encode(*annotate(spans, LENGTH), starts)) for spans in agreeing}
        assert scheme.name == "IOB1" or not n_steps


@pytest.mark.parametrize("name", ["IO", "IOB1"])
def test_what_bio_allows_is_spelt_in_other_tags(name):
    """Whatever the tags of BIO allow, tag by tag: the same span sets are left, as far as the scheme can tell them from others."""
    scheme, bio = get_scheme(name), get_scheme("BIO")
    mask = bio.transition_mask(len(LABELS))
    rng = np.random.default_rng(0)
    every = list(segmentations(LENGTH))
    encoded = {}  # by the starts of sequences: the tags of BIO, those of the scheme, and the spans
    for cuts in ((0, LENGTH), (0, 2, LENGTH)):
        inside = [spans for spans in every if not any(begin < cut < end for begin, end, _ in spans for cut in cuts)]
        annotated = [annotate(spans, LENGTH) for spans in inside]
        tags = [[tuple(each.encode(*way, np.array(cuts))) for way in annotated] for each in (bio, scheme)]
        valid = [is_valid(mask, path) for path in tags[0]]
        encoded[cuts] = [way for way, possible in zip(zip(*tags, inside), valid) if possible]
    for _ in range(100):
        allowed = rng.random((LENGTH, 1 + 2 * len(LABELS))) < rng.choice([0.3, 0.6, 0.9])
        if rng.random() < 0.5:  # two tokens are annotated
            allowed[1:3] = False
            allowed[[1, 2], rng.choice([0, 1, 3], 2)] = True
        cuts = (0, LENGTH) if rng.random() < 0.7 else (0, 2, LENGTH)
        left = [way for way in encoded[cuts] if all(allowed[token, tag] for token, tag in enumerate(way[0]))]
        if name == "IO":
            left = [way for way in left if not touches_same_label(way[2], way[2], cuts)]
        expected = {path for _, path, _ in left}
        found, _ = paths_of(scheme, allowed, np.array(cuts))
        if name == "IO" and not expected:  # annotated spans that touch are one
            continue
        assert found == expected


def touches_same_label(spans, known, starts=()):
    return any(
        a[2] == b[2] and ((a[1] == b[0] and b[0] not in starts) or (b[1] == a[0] and a[0] not in starts))
        for a in spans
        for b in known
    )


def test_names():
    assert get_scheme("BILUO").tags(["PER"]) == ["O", "B-PER", "I-PER", "L-PER", "U-PER"]
    assert get_scheme("BIO").tags(LABELS) == ["O", "B-PER", "I-PER", "B-a-b c", "I-a-b c"]


def test_no_tokens():
    for scheme in SCHEMES.values():
        empty, starts = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        assert scheme.encode(empty, empty, starts).shape == (0,)
        assert scheme.clamp(empty, empty, starts, 1).shape[0] == 0
        assert len(scheme.decode(empty, starts).start) == 0


def test_unknown_scheme_names_the_known():
    with pytest.raises(ValueError, match=r"CRF001.*'BILOU'.*IO, BIO, IOB1, BILUO"):
        get_scheme("BILOU")


@pytest.mark.parametrize(
    "n_labels, lengths, scheme",
    [
        (2, [1, 2] * 1999, "BIO"),
        (2, [1, 2] * 2000, "BILUO"),
        (2, [2] * 10, "BILUO"),
        (2, [1, 2], "BIO"),
        (2, [], "BILUO"),
    ],
)
def test_few_short_spans_of_a_label_are_spelt_as_bio(n_labels, lengths, scheme):
    assert choose_scheme(n_labels, lengths) == scheme
