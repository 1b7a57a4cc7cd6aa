"""Labels of texts that depend on each other: a log-linear model of each text, and ties between texts that are linked.

    score(y) = sum_d (first[y_d] + sum of the weights of d's features under y_d) + sum_(d, e tied) table[y_d, y_e]

(Taskar, Abbeel & Koller 2002; Sen et al. 2008.) Each text is a sequence of one row of a `TiedChains`, so every inference method
for ties between tokens labels linked texts too.
"""

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model

from spacy_crf import checks
from spacy_crf.features.doc_batch import TEXT, DocBatch
from spacy_crf.models.emissions import Emissions
from spacy_crf.models.structure import Explained, SharedScores, build, exact_weights
from spacy_crf.models.texts import Reasons, TextNode, check_text_emissions
from spacy_crf.pipeline.crf_textcat import CRFTextClassifier, TextDecoding, TextPrediction
from spacy_crf.pipeline.pipe import only_docs

from .ties.belief_propagation import BeliefPropagation
from .ties.decoding import TiedDecoding
from .ties.documents import Collection, DocumentTemplate, group_of
from .ties.factor_graph import FactorGraphNode, TiedModel
from .ties.layer import TiesLayer, check_templates
from .ties.mean_field import MeanField
from .ties.method import Inference
from .ties.scores import TiedScores


class LinkedDecoding(TextDecoding, TiedDecoding):
    """Decoding of texts that are tied."""


class LinkedTextsNode(TextNode, FactorGraphNode):
    gives = TiedScores
    traits = FactorGraphNode.traits._replace(labelled="texts", meaning=(), group_of=group_of)
    decoding = LinkedDecoding

    def join(self, outputs: tuple, shared: SharedScores) -> TiedScores:
        """The potentials of linked texts, see `FactorGraphNode.join`."""
        return FactorGraphNode.join(self, outputs, shared)

    def explained(self, model: Model) -> Explained:
        """Explanations of a text alone; `reasons` adds what its ties say."""
        return Explained(TextNode(), exact_weights(model), terms=self.token_terms)

    def reasons(self, model: Model, docs: DocBatch) -> Reasons:
        """The evidence of tokens beside what the ties of a text say."""
        found = super().reasons(model, docs)
        scores = model.predict(docs)
        told = self.structure.as_chains(scores).emissions - scores.emissions
        left_out = found.left_out + np.repeat(told, np.diff(docs.bounds), axis=0)
        return Reasons(found.scores + told, found.units, left_out)


def predict_together(pipe: CRFTextClassifier, docs: Iterable[Doc]) -> TextPrediction:
    """Like `pipe.predict`, for Docs that form one collection whatever their ``doc._.crf_group``: links tie them to each other.
    `pipe.set_annotations` writes the result.

    RAISES (ValueError): As `predict`; CRF492 for invalid links, CRF493 for two Docs with one id.
    """
    return pipe.predict(Collection(only_docs(pipe.name, docs)))


def LinkedTexts(
    emissions: Model[list[Doc], Emissions],
    cliques: Optional[dict[str, Any]] = None,
    inference: Any = None,
    training_inference: Any = None,
    strength: float = 0.5,
) -> Model[list[Doc], TiedScores]:
    """A log-linear model of the labels of texts, some of which are tied, such as pages with links and papers with citations.

    emissions (Model): Sums of weights of features, from SparseEmissions or HashedEmissions.
    cliques (Dict[str, DocumentTemplate]): Templates that tie texts, such as `spacy_crf_lab.LinkedDocuments.v1`, by names that you
        choose.
    inference (Inference): Inference method for tied texts, by default `spacy_crf_lab.MeanField.v1`. It starts from what each text
        says alone; where links form one large network, other methods may give all of its texts the same label.
    training_inference (Inference): Inference method in training, by default `spacy_crf_lab.BeliefPropagation.v1`.
    strength (float): Factor for the tables of ties, see `spacy_crf_lab.FactorGraph.v1`.
    """
    owner = "LinkedTexts"
    check_text_emissions(owner, emissions, TEXT)
    templates = check_templates(owner, cliques, DocumentTemplate.ties)
    methods = {
        "inference": MeanField() if inference is None else inference,
        "training_inference": BeliefPropagation() if training_inference is None else training_inference,
    }
    for name, method in methods.items():
        checks.expect(
            isinstance(method, Inference),
            owner,
            name,
            method,
            "an inference method for graphs, such as spacy_crf_lab.MeanField.v1",
        )
    strength = checks.number(owner, "strength", strength, least=0.001, most=1000.0)
    layers = {
        "emissions": emissions,
        "cliques": TiesLayer(templates, [["strength", strength]]),
    }
    node = LinkedTextsNode(methods["inference"], methods["training_inference"], strength)
    return build("linked_texts", node, layers, kind=TiedModel, chain=True, label_of=np.zeros(1, dtype=np.int64))
