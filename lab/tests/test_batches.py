"""What a Doc gets does not depend on the other Docs of its batch: `tests.pipeline.test_components` with models of the lab."""

import pytest
from spacy.tokens import Token

from tests.components import CHAIN, EMISSIONS, FEATURES, OF_TEXTS, PIPELINES, TRAINED
from tests.pipeline import test_components

from .util import for_rows

TIES = {
    "@architectures": "spacy_crf_lab.FactorGraph.v1",
    "emissions": EMISSIONS,
    "cliques": {"words": {"@misc": "spacy_crf_lab.RepeatedWords.v1", "edges": "all"}},
    "training_inference": {"@misc": "spacy_crf_lab.BeliefPropagation.v1"},
}
INFERENCES = ["MeanField", "Gibbs", "JunctionTree", "DualDecomposition"]
LINKS = {"links": {"@misc": "spacy_crf_lab.LinkedDocuments.v1"}}
LINKED = {"@architectures": "spacy_crf_lab.LinkedTexts.v1", "emissions": OF_TEXTS, "cliques": LINKS}
NUMBERS = {
    "@architectures": "spacy_crf_lab.GaussianChain.v1",
    "emissions": {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES},
}
LATENT = {"@architectures": "spacy_crf_lab.LatentChain.v1", "emissions": EMISSIONS, "hidden": 2, "spread": 0.2}
HIDDEN = {"@architectures": "spacy_crf_lab.HiddenChain.v1", "emissions": OF_TEXTS}
LABEL_GRAPH = {
    "@architectures": "spacy_crf_lab.LabelGraph.v1",
    "emissions": OF_TEXTS,
    "cliques": {"labels": {"@misc": "spacy_crf_lab.Hierarchy.v1", "parents": {"A": "B"}}},
}
BEAM = {"@misc": "spacy_crf_lab.beam.v1", "width": 2}
OTHERS = {
    "ner, beam": ("crf_ner", {"model": CHAIN, "scheme": "IOB1", "decoder": BEAM}, "counts"),
    "ner, ties": ("crf_ner", {"model": TIES}, None),
    "ner, ties, rules": ("crf_ner", {"model": TIES}, "counts"),
    "ner, latent": ("crf_ner", {"model": LATENT, "decoder": {"@misc": "spacy_crf_lab.labelling.v1"}}, None),
    "texts, hidden": ("crf_textcat", {"model": HIDDEN}, None),
    "texts, linked": ("crf_textcat", {"model": LINKED}, None),
    "texts, several labels": ("crf_textcat", {"model": LABEL_GRAPH, "multilabel": True}, None),
    "numbers": ("crf_scorer", {"model": NUMBERS, "unit": "token"}, None),
    **{
        f"ner, ties, {name}": ("crf_ner", {"model": {**TIES, "inference": {"@misc": f"spacy_crf_lab.{name}.v1"}}}, None)
        for name in INFERENCES
    },
    **{
        f"ner, {name}": (
            "crf_ner",
            {"model": {**CHAIN, "@architectures": f"spacy_crf_lab.{name}.v1"}, "scheme": "BIO"},
            None,
        )
        for name in ("MaxEnt", "MEMM", "OutputCodes")
    },
}
PIPELINES |= OTHERS
TRAINED.append(NUMBERS)  # it finds strengths above 0

if not Token.has_extension("crf_number"):
    Token.set_extension("crf_number", default=None)


@pytest.fixture(autouse=True)
def numbers(monkeypatch):
    """Give tokens a number in the training texts, and compare the numbers that components predict."""
    example, found, draw_docs = test_components._example, test_components.found, test_components.draw_docs

    def with_groups(rng, nlp, name):
        docs, n_alone = draw_docs(rng, nlp, name)
        if name != "texts, linked":
            return docs, n_alone
        for number, doc in enumerate(docs):
            if rng.random() < 0.3:  # it belongs to a group, whose texts may link to each other
                doc._.crf_group = "group"
                doc._.crf_id = str(number)
                doc._.crf_links = [str(rng.integers(len(docs)))]
        alone = [doc for doc in docs if doc._.crf_group is None]
        return [*alone, *(doc for doc in docs if doc._.crf_group is not None)], len(alone)

    def with_numbers(nlp, n):
        made = example(nlp, n)
        for token in made.reference:
            token._.crf_number = float(n * token.i)
        return made

    def also_numbers(doc):
        decided, probabilities = found(doc)
        return decided, [*probabilities, *(token._.crf_number or 0.0 for token in doc)]

    monkeypatch.setattr(test_components, "_example", with_numbers)
    monkeypatch.setattr(test_components, "found", also_numbers)
    monkeypatch.setattr(test_components, "draw_docs", with_groups)


globals().update(for_rows("name", [*OTHERS], test_components.test_a_doc_alone_and_in_any_batch))
