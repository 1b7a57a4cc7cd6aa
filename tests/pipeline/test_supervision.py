"""What training is told beside the annotation: alternatives, incorrect spans, weights, a model to start from, pruning."""

import logging
from itertools import pairwise

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.perceptron import AveragedPerceptron
from spacy_crf.pipeline import supervision
from spacy_crf.schemes import BEGIN, INSIDE, OUTSIDE
from spacy_crf.types import ChainScores
from tests.util import NER_TEXTS, ner_examples, tag_examples


def make(scheme="BILUO", **config):
    nlp = spacy.blank("en")
    return nlp, nlp.add_pipe("crf_ner", config={"scheme": scheme, "optimizer": None, **config})


def clamp_of(pipe, example):
    annotated = pipe.training.data([example])
    tags = np.array(pipe.tags())
    return [set(tags[row].tolist()) for row in annotated.allowed]


def unset(nlp, words):
    return Doc(nlp.vocab, words=words)


def test_alternatives_are_all_that_is_allowed_where_annotation_is_missing():
    nlp, pipe = make(alternatives_spans_key="maybe")
    for label in ("GPE", "PER"):
        pipe.add_label(label)
    gold = unset(nlp, ["Paris", "Hilton", "spoke"])
    gold.spans["maybe"] = [Span(gold, 0, 2, "PER"), Span(gold, 0, 1, "GPE"), Span(gold, 1, 2, "O")]
    allowed = clamp_of(pipe, Example(unset(nlp, ["Paris", "Hilton", "spoke"]), gold))
    assert allowed[:2] == [{"B-PER", "U-GPE"}, {"L-PER", "O"}]
    assert allowed[2] == set(pipe.tags())


def test_alternatives_stand_beside_annotation():
    nlp, pipe = make(alternatives_spans_key="maybe")
    pipe.add_label("PER")
    gold = Doc(nlp.vocab, words=["May", "left"], ents=["O", "O"])
    gold.spans["maybe"] = [Span(gold, 0, 1, "PER")]
    assert clamp_of(pipe, Example(unset(nlp, ["May", "left"]), gold)) == [{"O", "U-PER"}, {"O"}]


def narrowed(scheme, wrong, ents=()):
    """How many labellings of four words the annotation allows, how many there are, and what the loss is given."""
    nlp, pipe = make(scheme, incorrect_spans_key="wrong")
    for label in ("PER", "GPE"):
        pipe.add_label(label)
    words = ["in", "New", "York", "City"]
    gold = unset(nlp, words)
    gold.set_ents([Span(gold, *ent) for ent in ents], default="missing")
    gold.spans["wrong"] = [Span(gold, *span) for span in wrong]
    annotated = pipe.training.data([Example(unset(nlp, words), gold)])
    mask = pipe.annotation.mask()
    zeros = (np.where(allowed, 0.0, -np.inf) for allowed in mask)
    scores = ChainScores(np.zeros((4, len(mask.first))), *zeros, annotated.starts)
    structure = annotated.structure or LinearChain()
    n_allowed = np.exp(structure.expectations(scores, clamp=annotated.allowed)[0])
    return round(float(n_allowed[0])), round(float(np.exp(LinearChain().log_partition(scores)[0]))), annotated


@pytest.mark.parametrize("scheme", ["BILUO", "BIO", "IO", "IOB1"])
def test_incorrect_spans_take_what_has_precisely_them(scheme):
    left, every, _ = narrowed(scheme, [(1, 3, "PER")])
    # What is taken: New York is PER, and the token on each side O, PER or GPE – with IO, PER there would be the same span
    assert every - left == (4 if scheme == "IO" else 9)
    left, every, annotated = narrowed(scheme, [(1, 2, "PER")])
    assert left < every
    assert (annotated.structure is None) == (scheme == "BILUO")  # U-PER says it


def test_incorrect_spans_beside_annotation():
    left, _, annotated = narrowed("BILUO", [(1, 2, "PER"), (0, 2, "PER")], ents=[(1, 3, "GPE")])
    assert annotated.structure is None and left == 9  # nothing to say
    left, _, _ = narrowed("BIO", [(1, 3, "PER")], ents=[(3, 4, "GPE")])
    assert left == narrowed("BIO", [], ents=[(3, 4, "GPE")])[0] - 3


@pytest.mark.parametrize("optimizer", [LBFGS(iterations_per_step=2), "Adam.v1"])
def test_annotation_that_leaves_no_labelling_is_told_once(optimizer, caplog):
    nlp, _pipe = make("BIO", incorrect_spans_key="wrong", alternatives_spans_key="maybe")
    examples = ner_examples(nlp)
    words = ["Carla", "Diaz", "left"]
    gold = unset(nlp, words)
    gold.spans["maybe"] = [Span(gold, *span) for span in ((0, 2, "PER"), (1, 2, "GPE"), (2, 3, "O"))]
    gold.spans["wrong"] = [Span(gold, *span) for span in ((0, 2, "PER"), (0, 1, "PER"))]
    examples.append(Example(unset(nlp, words), gold))
    if isinstance(optimizer, str):
        optimizer = spacy.registry.optimizers.get(optimizer)()
    nlp.initialize(lambda: examples, sgd=optimizer)
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        for _n in range(2):
            nlp.update(examples, sgd=optimizer)
    assert len([record for record in caplog.records if "CRFW403: crf_ner: 1 sequences" in record.message]) == 1


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner", "crf_tagger"])
def test_a_span_that_is_right_and_wrong_is_refused(factory):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config={"incorrect_spans_key": "wrong"})
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    gold = examples[0].reference
    gold.spans["wrong"] = [Span(gold, 0, 2, "DT" if factory == "crf_tagger" else "PER")]
    with pytest.raises(ValueError, match=r"CRF441.*tokens 0 to 2.*doc.spans\['wrong'\]"):
        nlp.initialize(lambda: examples)
    nlp.initialize(lambda: examples[1:])
    with pytest.raises(ValueError, match="CRF441"):
        nlp.update(examples)
    gold.spans["wrong"] = [Span(gold, 0, 1, "NN" if factory == "crf_tagger" else "PER")]
    nlp.update(examples)
    assert "wrong" not in pipe.labels


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_negated_entities_are_refused(factory):
    """As in spaCy's `ner`, which has `incorrect_spans_key` for them; a label may look so, where somebody says that it is one."""
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory)
    examples = ner_examples(nlp)
    negated = ner_examples(nlp, ["[Ann](!PER) left ."])
    with pytest.raises(ValueError, match=r"CRF440.*'!PER' of 'Ann'.*incorrect_spans_key"):
        nlp.initialize(lambda: [*examples, *negated])
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match="CRF440"):
        nlp.update(negated)
    pipe.add_label("!PER")
    nlp.update(negated)


def test_negated_tags_are_learned():
    """As in spaCy's `tagger`: "!NN" is any tag but NN."""
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_tagger")
    examples = tag_examples(nlp)
    nlp.initialize(lambda: [*examples, *tag_examples(nlp, ["the/!DT dog/!XX"])])
    assert pipe.labels == ("DT", "JJ", "NN", "RB", "VB")
    negated = tag_examples(nlp, ["the/DT dog/!NN barks/VB"])
    assert clamp_of(pipe, negated[0]) == [{"DT"}, {"DT", "JJ", "RB", "VB"}, {"VB"}]
    nlp.update(examples, sgd=LBFGS(l2=0.01, iterations_per_step=50))
    assert nlp(unset(nlp, ["the", "dog", "barks"]))[1].tag_ == "NN"
    nlp.update(negated * 5, sgd=LBFGS(l2=0.01, iterations_per_step=50))
    assert nlp(unset(nlp, ["the", "dog", "barks"]))[1].tag_ != "NN"
    pipe.annotation.neg_prefix = ""
    assert clamp_of(pipe, negated[0])[1] == set(pipe.labels)


def reading_tags(scheme, spans, n, starts):
    iob, label = np.full(n, OUTSIDE), np.zeros(n, dtype=np.int64)
    for begin, end, name in spans:
        iob[begin:end], label[begin:end] = INSIDE, "AB".index(name)
        iob[begin] = BEGIN
    return scheme.encode(iob, label, np.array(starts))


def span_sets(n, starts):
    """All sets of spans of n tokens; none crosses the start of a sentence."""
    found = [((), 0)]
    for begin in range(n):
        for spans, end in list(found):
            for stop in range(begin + 1, n + 1):
                if end <= begin and not any(begin < start < stop for start in starts):
                    found += [((*spans, (begin, stop, label)), stop) for label in "AB"]
    return [spans for spans, _ in found]


def what_is_left(scheme, n, starts, ents=(), outside=(), maybe=(), wrong=()):
    """The labellings that annotation leaves, from its definition tag by tag."""
    bio = scheme.reading
    known = {t: tag for t, tag in enumerate(reading_tags(bio, ents, n, starts)) if tag}
    known |= dict.fromkeys(outside, 0)
    names = bio.tags(["A", "B"])
    allowed = [{known[t]} if t in known else set(range(len(names))) for t in range(n)]
    if bio.name == "BIO":
        for _, end, label in ents:
            if end < n and end not in known and end not in starts:
                allowed[end] -= {names.index(f"I-{label}")}
    fresh = set(range(n)) - set(known)
    for begin, end, label in maybe:
        tags = (
            [0] * (end - begin)
            if label == "O"
            else reading_tags(bio, [(0, end - begin, label)], end - begin, [0, end - begin])
        )
        for t, tag in zip(range(begin, end), tags):
            allowed[t] = {tag} if t in fresh else allowed[t] | {tag}
            fresh -= {t}
    out = set()
    for begin, end, label in wrong:
        alone = label == "O" or (bio.name == "BILUO" and end == begin + 1)
        if alone:
            tag = 0 if label == "O" else names.index(f"U-{label}")
            for t in range(begin, end):
                allowed[t] -= {tag} if len(allowed[t]) > 1 else set()
            continue
        [tags] = [reading_tags(bio, [(0, end - begin, label)], end - begin, [0, end - begin])]
        goes_on = bio.name == "BIO" and end < n and end not in starts and names.index(f"I-{label}") in allowed[end]
        if goes_on or any(allowed[t] != {tag} for t, tag in zip(range(begin, end), tags)):
            out.add((begin, end, label))
    left = []
    for spans in span_sets(n, starts):
        touching = any(a[2] == b[2] and a[1] == b[0] and b[0] not in starts for a, b in pairwise(spans))
        tags = reading_tags(bio, spans, n, starts)
        if not (set(spans) & out or (scheme.name == "IO" and touching)) and all(t in a for t, a in zip(tags, allowed)):
            left.append(spans)
    return left


@pytest.mark.parametrize("name", ["BILUO", "BIO", "IO", "IOB1"])
@pytest.mark.parametrize("seed", range(1))
def test_what_is_left_of_random_annotation(seed, name):
    nlp, pipe = make(name, alternatives_spans_key="maybe", incorrect_spans_key="wrong")
    for label in "AB":
        pipe.add_label(label)
    rng = np.random.default_rng(seed)

    def draw(many, labels):
        begins, ends = rng.integers(0, 4, many), rng.integers(1, 3, many)
        return [(int(b), int(min(b + k, 4)), str(x)) for b, k, x in zip(begins, ends, rng.choice(labels, many))]

    n_partial = 0
    for _ in range(60):
        starts = [0, 4] if rng.random() < 0.7 else [0, 2, 4]
        ents = [span for span in draw(rng.integers(0, 2), ["A", "B"]) if not span[0] < starts[1] < span[1]]
        covered = {t for begin, end, _ in ents for t in range(begin, end)}
        outside = [t for t in range(4) if rng.random() < 0.2 and t not in covered]
        maybe = draw(rng.choice([0, 0, 1, 2, 4]), ["A", "B", "O"])
        wrong = [span for span in draw(rng.choice([0, 0, 1, 3]), ["A", "B", "O"]) if span not in ents]
        words, sentences = list("wxyz"), [t in starts for t in range(4)]
        gold = Doc(nlp.vocab, words=words, sent_starts=sentences)
        gold.set_ents([Span(gold, *s) for s in ents], outside=[gold[t : t + 1] for t in outside], default="missing")
        gold.spans["maybe"] = [Span(gold, *span) for span in maybe]
        gold.spans["wrong"] = [Span(gold, *span) for span in wrong]
        annotated = pipe.training.data([Example(Doc(nlp.vocab, words=words, sent_starts=sentences), gold)])
        zeros = (np.where(allowed, 0.0, -np.inf) for allowed in pipe.annotation.mask())
        scores = ChainScores(np.zeros(annotated.allowed.shape), *zeros, annotated.starts)
        structure = annotated.structure or LinearChain()
        log_z, expected = structure.expectations(scores, clamp=annotated.allowed)
        left = what_is_left(pipe.annotation.scheme, 4, starts, ents, outside, maybe, wrong)
        if name == "IO" and not left:  # spans that are certain and touch are one
            continue
        assert log_z.sum() == pytest.approx(np.log(len(left)) if left else -np.inf)
        if left:
            tags = np.array([reading_tags(pipe.annotation.scheme, spans, 4, starts) for spans in left])
            share = (tags[:, :, None] == np.arange(len(pipe.tags()))).mean(axis=0)
            np.testing.assert_allclose(expected.emissions, share, atol=1e-9)
        n_partial += len(left) > 1
        named = {t for begin, end, _ in [*ents, *maybe] for t in range(begin, end)} | set(outside)
        assert annotated.unset.tolist() == [t not in named for t in range(4)]
        # Who can't look at steps between tags learns from labellings that are left, if from fewer
        narrow = pipe.training.data(
            [Example(Doc(nlp.vocab, words=words, sent_starts=sentences), gold)], "sequences"
        ).allowed
        every = what_is_left(
            pipe.annotation.scheme, 4, starts, ents, outside, maybe, [s for s in wrong if annotated.structure is None]
        )
        spelt = {
            spans: reading_tags(pipe.annotation.scheme, spans, 4, starts)
            for spans in what_is_left(pipe.annotation.scheme, 4, starts)
        }
        some = {spans for spans, tags in spelt.items() if narrow[np.arange(4), tags].all()}
        assert some <= set(every) and (some or not left)
    assert n_partial > 20


def test_who_can_not_look_at_steps_says_so_once(caplog):
    nlp, _pipe = make("IOB1", loss={"@losses": "spacy_crf.Perceptron.v1"})
    gold = unset(nlp, ["aa", "bb", "cc"])
    gold.set_ents([Span(gold, 1, 2, "PER")], default="missing")
    examples = [*ner_examples(nlp), Example(unset(nlp, ["aa", "bb", "cc"]), gold)]
    nlp.initialize(lambda: examples)
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        for _n in range(2):
            nlp.update(examples, sgd=AveragedPerceptron(epochs_per_step=1))
    [message] = [record.message for record in caplog.records if "CRFW421" in record.message]
    assert "(1 or more in the first such batch)" in message and "Optimizers that learn" in message


@pytest.mark.parametrize("scheme", ["IO", "IOB1", "BIO", "BILUO"])
def test_an_annotated_entity_may_have_neighbours_of_its_label(scheme):
    """But under IO, which can't part them."""
    nlp, pipe = make(scheme)
    words = ["aa", "bb"]
    twice = ner_examples(nlp, ["[aa](A) [bb](A)", "[aa](A) cc", "cc [bb](A)", "cc cc"])
    nlp.initialize(lambda: twice)
    half = unset(nlp, words)
    half.set_ents([Span(half, 1, 2, "A")], default="missing")
    optimizer = LBFGS(l2=0.01, iterations_per_step=40)
    nlp.update([*twice[1:], *[Example(unset(nlp, words), half)] * 3], sgd=optimizer)
    doc = unset(nlp, words)
    doc.set_ents([Span(doc, 1, 2, "A")], default="missing")
    likely = pipe.span_probabilities(doc, 0.0, keep_annotation=True)
    beside = {span.start: probability for span, probability in likely if len(span) == 1}
    assert beside[1] == pytest.approx(1.0)
    assert (beside.get(0, 0.0) > 0.5) == (scheme != "IO")


@pytest.mark.parametrize("scheme", ["IO", "BIO", "IOB1", "BILUO"])
def test_features_beside_an_annotated_entity_get_no_weights_for_all_tags(scheme):
    nlp, pipe = make(scheme)
    gold = Doc(nlp.vocab, words=["aa", "bb", "cc"])
    gold.set_ents([Span(gold, 0, 1, "A")], default="missing")
    others = ner_examples(nlp, ["[dd](A) ee [ff](B) [gg](B) ."])
    nlp.initialize(lambda: [Example(unset(nlp, ["aa", "bb", "cc"]), gold), *others])
    states = pipe.model.get_ref("emissions").attrs["features"].states
    assert "lower[0]=dd" in states.index.names() and "lower[0]=bb" not in states.index.names()


def test_incorrect_spans_of_no_label_or_another_components_say_nothing():
    left, every, _ = narrowed("BILUO", [(1, 3, ""), (1, 3, "DATE")])
    assert left == every


@pytest.mark.parametrize(
    "settings, optimizer, who",
    [
        ({"loss": {"@losses": "spacy_crf.Perceptron.v1"}}, AveragedPerceptron(epochs_per_step=1), "Optimizers that"),
    ],
)
def test_who_can_not_use_incorrect_spans_says_so_once(settings, optimizer, who, caplog):
    nlp, _pipe = make(incorrect_spans_key="wrong", **settings)
    examples = ner_examples(nlp)
    gold = unset(nlp, ["Carla", "Diaz", "likes", "Bob"])
    gold.spans["wrong"] = [Span(gold, 0, 2, "PER")]
    examples.append(Example(unset(nlp, ["Carla", "Diaz", "likes", "Bob"]), gold))
    nlp.initialize(lambda: examples)
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        for _n in range(2):
            nlp.update(examples, sgd=optimizer)
    [message] = [record.message for record in caplog.records if "CRFW402" in record.message]
    assert who in message and "doc.spans['wrong']" in message


RULES = [{"rule": "at_most", "label": "ORG", "n": 1}]
IN_TRAINING = {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": RULES, "in_training": True}}


@pytest.mark.parametrize("scheme", ["BILUO", "BIO"])
@pytest.mark.parametrize("settings", [{}, IN_TRAINING], ids=["alone", "with rules"])
def test_a_wrong_span_leaves_the_longer_one(scheme, settings):
    """As in spaCy's `ner`: the whole span with its label is wrong, not what begins or ends as it does."""
    nlp, pipe = make(scheme, incorrect_spans_key="wrong", **settings)
    examples = ner_examples(
        nlp, [*NER_TEXTS, "In [Salt Lake City](GPE) it snows .", "In [Mexico City](GPE) it rains ."]
    )
    words = ["In", "New", "York", "City", "it", "rains", "."]
    for _n in range(3):
        gold = unset(nlp, words)
        gold.spans["wrong"] = [Span(gold, *ends, "GPE") for ends in ((1, 3), (1, 2), (2, 4))]
        examples.append(Example(unset(nlp, words), gold))
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=0.01, iterations_per_step=80))
    likely = pipe.span_probabilities(unset(nlp, words), 0.0)
    probability = {(span.start, span.end): p for span, p in likely if span.label_ == "GPE"}
    assert max(probability[ends] for ends in ((1, 3), (1, 2), (2, 4))) < 0.05
    assert probability[1, 4] > 0.5
    assert next(ent.text for ent in nlp(examples[4].reference.copy()).ents) == "New York"


def test_incorrect_spans_are_not_predicted_after_training():
    nlp, _pipe = make(incorrect_spans_key="wrong")
    examples = ner_examples(nlp)
    for _n in range(3):
        gold = unset(nlp, ["Carla", "likes", "Bob"])
        gold.spans["wrong"] = [Span(gold, 2, 3, "PER")]
        examples.append(Example(unset(nlp, ["Carla", "likes", "Bob"]), gold))
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=0.01, iterations_per_step=60))
    assert not [
        ent for ent in nlp(unset(nlp, ["Carla", "likes", "Bob"])).ents if ent.text == "Bob" and ent.label_ == "PER"
    ]
    assert next(ent.text for ent in nlp(examples[1].reference.copy()).ents) == "Bob"


def test_spans_of_labels_nobody_knows_are_reported(caplog):
    nlp, pipe = make(alternatives_spans_key="maybe")
    examples = ner_examples(nlp)
    examples[0].reference.spans["maybe"] = [Span(examples[0].reference, 0, 1, "XYZ")]
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        pipe.initialize(lambda: examples, labels=["GPE", "ORG", "PER"])
    assert "a label the component does not know" in caplog.text


def test_tagger_alternatives():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_tagger", config={"alternatives_spans_key": "maybe", "incorrect_spans_key": "wrong"})
    for label in ("NN", "VB", "DT"):
        pipe.add_label(label)
    gold = unset(nlp, ["the", "run"])
    gold.spans["maybe"] = [Span(gold, 1, 2, "NN"), Span(gold, 1, 2, "VB")]
    gold.spans["wrong"] = [Span(gold, 0, 1, "VB")]
    assert clamp_of(pipe, Example(unset(nlp, ["the", "run"]), gold)) == [{"NN", "DT"}, {"NN", "VB"}]


def test_document_weights_multiply_the_loss():
    losses = []
    for weight in (1.0, 2.0):
        nlp, pipe = make()
        examples = ner_examples(nlp)
        for example in examples:
            example.reference._.crf_weight = weight
        nlp.initialize(lambda examples=examples: examples)
        scores, _ = pipe.model.begin_update([example.predicted for example in examples])
        losses.append(pipe.get_loss(examples, scores)[0])
    assert losses[1] == pytest.approx(2 * losses[0])


@pytest.mark.parametrize("weight", [-1.0, float("nan"), "heavy"])
def test_weights_that_make_no_sense_are_refused(weight):
    nlp, _pipe = make()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    examples[2].reference._.crf_weight = weight
    with pytest.raises(ValueError, match=r"CRF020.*Nobody was there"):
        nlp.update(examples, sgd=LBFGS())


@pytest.mark.parametrize(
    "extension, expected",
    [({"default": 1.0}, None), ({"default": 2}, [2, 2, 3]), ({"getter": lambda doc: len(doc) / 2}, [0.5, 1, 1.5])],
)
def test_weights_of_documents_that_say_nothing_themselves(extension, expected):
    vocab, before = spacy.blank("en").vocab, Doc.get_extension("crf_weight")
    docs = [Doc(vocab, words=["a"] * n) for n in (1, 2, 3)]
    if extension.get("default") == 2:
        docs[2]._.crf_weight = 3
    Doc.set_extension("crf_weight", force=True, **extension)
    try:
        bounds = np.array([0, 1, 3, 6])
        weights = supervision.sequence_weights([Example(doc.copy(), doc) for doc in docs], bounds, bounds)
    finally:
        Doc.set_extension("crf_weight", force=True, default=before[0])
    assert weights is None if expected is None else weights.tolist() == expected


def test_a_changed_weight_is_noticed_between_steps():
    nlp, pipe = make()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer = LBFGS(iterations_per_step=1)
    nlp.update(examples, sgd=optimizer)
    before = pipe.training.corpus
    nlp.update(examples, sgd=optimizer)
    assert pipe.training.corpus is before
    examples[0].reference._.crf_weight = 3.0
    nlp.update(examples, sgd=optimizer)
    assert pipe.training.corpus is not before


def test_initialize_starts_from_a_saved_model(tmp_path):
    nlp, pipe = make()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(iterations_per_step=30))
    nlp.to_disk(tmp_path / "model")
    before = [[(ent.text, ent.label_) for ent in nlp(e.predicted.copy()).ents] for e in examples]
    for source in (tmp_path / "model", tmp_path / "model" / "crf_ner"):
        other, warm = make()
        new = ner_examples(other, [*NER_TEXTS, "[Tuesday](DATE) was fine ."])
        other.config["initialize"]["components"] = {"crf_ner": {"start_from": str(source)}}
        other.initialize(lambda new=new: new)
        assert warm.labels == (*pipe.labels, "DATE")
        again = [[(ent.text, ent.label_) for ent in other(e.predicted.copy()).ents] for e in new[:-1]]
        assert again == before
        features = warm.model.get_ref("emissions").attrs["features"]
        assert len(features.states.index) > len(pipe.model.get_ref("emissions").attrs["features"].states.index)


def test_zero_weights_are_left_out_of_the_saved_model(tmp_path, caplog):
    nlp, pipe = make()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l1=0.5, l2=0.01, iterations_per_step=50))
    weights = pipe.model.get_ref("emissions").get_param("states")
    with caplog.at_level(logging.INFO, logger="spacy.spacy_crf.training"):
        nlp.to_disk(tmp_path)
    n_zero = int((weights == 0).sum())
    assert n_zero > 0 and f"{n_zero} weights that are zero" in caplog.text
    assert len(pipe.model.get_ref("emissions").get_param("states")) == len(weights)  # training may go on
    loaded = spacy.load(tmp_path)
    kept = loaded.get_pipe("crf_ner").model.get_ref("emissions")
    assert len(kept.get_param("states")) == len(weights) - n_zero
    assert (np.diff(kept.attrs["features"].states.pair_starts) > 0).all()
    for example in examples:
        one, other = nlp(example.predicted.copy()), loaded(Doc(loaded.vocab, words=[t.text for t in example.predicted]))
        assert [(e.start, e.end, e.label_) for e in one.ents] == [(e.start, e.end, e.label_) for e in other.ents]


def test_a_corpus_without_any_annotation_is_refused():
    nlp, _ = make()
    examples = [Example(unset(nlp, ["a", "b"]), unset(nlp, ["a", "b"]))]
    with pytest.raises(ValueError, match="CRF403"):
        nlp.initialize(lambda: examples)


def test_a_loss_that_is_not_finite_names_the_batch():
    nlp, pipe = make()
    examples = ner_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    node = pipe.model.get_ref("emissions")
    nlp.update(examples, sgd=optimizer)
    node.get_param("states")[:] = np.nan
    with pytest.raises(ValueError, match=r"CRF206.*'Ann Lee lives"):
        nlp.update(examples, sgd=optimizer)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_step_to_weights_that_are_not_finite_is_not_taken():
    nlp, pipe = make()
    examples = ner_examples(nlp)
    optimizer = spacy.registry.optimizers.get("SGD.v1")(1e38, grad_clip=0.0)
    nlp.initialize(lambda: examples, sgd=optimizer)
    with pytest.raises(ValueError, match=r"CRF206.*'Ann Lee lives"):
        for _n in range(3):
            nlp.update(examples, sgd=optimizer)
    for node in pipe.model.walk():
        assert all(np.isfinite(node.get_param(name)).all() for name in node.param_names)


def test_partial_tags_train_with_online_rules_too():
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_tagger", config={"loss": {"@losses": "spacy_crf.Perceptron.v1"}})
    examples = tag_examples(nlp)
    examples[0].reference[1].tag_ = ""
    nlp.initialize(lambda: examples)
    optimizer = AveragedPerceptron(epochs_per_step=20)
    nlp.update(examples, sgd=optimizer)
    with nlp.use_params(optimizer.averages):
        assert nlp.evaluate(examples)["tag_acc"] == 1.0
    assert pipe.labels
