"""Extensions that other packages may register, made here without any change of the package."""

import re
from pathlib import Path as FilePath

import numpy as np
import pytest
import spacy
from spacy.tokens import Span
from spacy.util import registry

from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.pipeline import add_certainty
from spacy_crf.pipeline.decoding import Decoder
from spacy_crf.types import Path
from tests.util import entities, ner_examples, plain


class BestEmissions(LinearChain):
    """Finds the label with the best emission for each token."""

    def best(self, work):
        states = work.emissions.argmax(axis=1).astype(np.int32)
        return Path(states, self.score_path(work, states))


class Doubted:
    """A distribution, and how doubtful spans are."""

    def __init__(self, exact):
        self.exact = exact

    def __getattr__(self, name):
        return getattr(self.exact, name)

    def certainties(self, segments):
        probabilities = self.exact.span_probabilities(segments)
        return {"crf_prob": probabilities, "crf_doubt": 1.0 - probabilities}


@registry.misc("test.best_emissions.v1")
class ByEmissions(Decoder):
    def searched(self, decoding):
        if not isinstance(decoding.structure, LinearChain):
            raise ValueError("chains only")
        return BestEmissions(threads=decoding.structure.threads)

    def distribution(self, batch, d):
        return Doubted(batch.by(batch.scores, d))


add_certainty("crf_doubt", 0.0, ByEmissions)
BLOCK = {"@misc": "test.best_emissions.v1"}


def trained(**config):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner", config={"confidence": True, "decoder": BLOCK, **config})
    examples = ner_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(5):
        nlp.update(examples, sgd=optimizer)
    return nlp, pipe, [plain(example.reference) for example in examples]


def found(docs):
    return [(entities(doc), [(ent._.crf_prob, ent._.crf_doubt) for ent in doc.ents]) for doc in docs]


def test_a_decoder_finds_labellings_and_their_certainties(tmp_path):
    nlp, pipe, texts = trained()
    expected = found(nlp.pipe(doc.copy() for doc in texts))
    assert any(ents for ents, _ in expected)
    for doc, (ents, certainties) in zip(texts, expected):
        best = pipe.model.predict([doc]).emissions.argmax(axis=1)
        assert pipe.predict([doc]).tags.tolist() == best.tolist()
        exact = pipe.distribution(doc).exact
        assert pipe.marginals(doc)[0].tolist() == exact.marginals().tolist()
        probable = {(span.start, span.end, span.label_): p for span, p in pipe.span_probabilities(doc, 0.0)}
        for (p, doubt), ent in zip(certainties, nlp(doc.copy()).ents):
            assert p == pytest.approx(probable[ent.start, ent.end, ent.label_]) and doubt == pytest.approx(1.0 - p)
        if pipe.proven(doc):
            [(_, spans)] = pipe.n_best(doc, 1)
            assert [(span.start, span.end, span.label_) for span in spans] == ents
    assert "ents_proven" in nlp.evaluate(ner_examples(nlp))
    assert nlp.analyze_pipes()["summary"]["crf_ner"]["assigns"][-1] == "span._.crf_doubt"
    assert pipe.explain(texts[0]) is not None
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert loaded.config["components"]["crf_ner"]["decoder"] == BLOCK
    assert found(loaded.pipe(doc.copy() for doc in texts)) == expected
    assert found(nlp.pipe((doc.copy() for doc in texts), n_process=2, batch_size=2)) == expected


def test_a_decoder_keeps_annotation_and_rules():
    rule = {"rule": "at_most", "label": "PER", "n": 1, "per": "doc"}
    nlp, pipe, texts = trained(constraints={"@misc": "spacy_crf.constraints.v1", "rules": [rule]})
    for doc in nlp.pipe(doc.copy() for doc in texts):
        assert sum(ent.label_ == "PER" for ent in doc.ents) <= 1
    doc = texts[0].copy()
    doc.set_ents([Span(doc, 2, 3, "ORG")], default="missing")
    [kept] = [ent for ent in pipe(doc).ents if ent.start == 2]
    assert (kept.label_, kept._.crf_prob, kept._.crf_doubt) == ("ORG", 1.0, 0.0)
    pipe.decoder = None
    assert pipe(texts[1].copy()).ents[0]._.crf_doubt is None


def test_what_is_no_decoder_is_refused():
    with pytest.raises(ValueError, match=r"CRF020: .* decoder = "):
        spacy.blank("en").add_pipe("crf_ner", config={"decoder": "best"})
    with pytest.raises(ValueError, match="chains only"):
        spacy.blank("en").add_pipe("semicrf_ner", config={"decoder": BLOCK})


PAGE = (FilePath(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf8")
_LISTED = set(re.findall(r"^\| `(\w+)\.(\w+)` \|", PAGE, re.MULTILINE))


@pytest.fixture(scope="module")
def page():
    """What the code block of the page makes."""
    namespace = {}
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(block, namespace)
    return namespace


def test_a_layer_a_structure_and_a_loss_of_the_page_learn_and_are_saved(page, tmp_path):
    nlp = spacy.blank("en")
    model = {"@architectures": "my_package.Capitals.v1"}
    ner = nlp.add_pipe("crf_ner", config={"model": model, "scheme": "BIO"})
    ner.loss = page["BestPath"]().bind(ner.decoding.state_labels)
    examples = ner_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    losses = [nlp.update(examples, sgd=optimizer)["crf_ner"] for _ in range(30)]
    assert losses[-1] < max(losses)  # with weights of 0 all labellings score alike, so the first loss is 0
    assert not ner.model.get_param("transitions").any() and ner.model.layers[0].get_param("W").any()
    with pytest.raises(ValueError, match="CRF"):
        nlp.update(examples, sgd=page["Descent"]())  # the layer has no part in an objective
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    for example in examples:
        assert entities(loaded(plain(example.reference))) == entities(nlp(plain(example.reference)))


def test_an_optimizer_of_the_page_finds_lower_losses(page):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer = page["Descent"]()
    losses = [nlp.update(examples, sgd=optimizer)["crf_ner"] for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]


def test_extensions_override_what_the_page_lists(page):
    from tests.models.test_new_structure import PairsNode

    mine = [each for each in page.values() if isinstance(each, type) and each.__module__ == "builtins"]
    for made in (*mine, PairsNode, ByEmissions, BestEmissions):
        for member in {name for name in vars(made) if not name.startswith("_")}:
            bases = [
                base for base in made.__mro__[1:] if base.__module__.startswith("spacy_crf.") and member in vars(base)
            ]
            assert not bases or any((base.__name__, member) in _LISTED for base in made.__mro__), f"{made}.{member}"
    assert len(mine) == 4
