"""The factories spaCy finds by their entry points, with their default configs.

Every ``spacy.blank()`` imports this file: it imports neither numba nor anything that does until a component is made.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import Config
from thinc.api import Model, Optimizer

if TYPE_CHECKING:
    from .crf_pipe import CRFPipe

DEFAULT_CRF_NER = """
[model]
@architectures = "spacy_crf.LinearChain.v1"
possible_transitions = true

[model.emissions]
@architectures = "spacy_crf.SparseEmissions.v1"
min_count = 1
possible_states = false

[model.emissions.features]
@misc = "spacy_crf.ner_features.v1"

[loss]
@losses = "spacy_crf.LogLikelihood.v1"

[optimizer]
@optimizers = "spacy_crf.Minibatch.v1"
learn_rate = 0.02

[scorer]
@scorers = "spacy.ner_scorer.v1"
"""

DEFAULT_CRF_TAGGER = """
[model]
@architectures = "spacy_crf.LinearChain.v1"
possible_transitions = true

[model.emissions]
@architectures = "spacy_crf.SparseEmissions.v1"
min_count = 1
possible_states = false

[model.emissions.features]
@misc = "spacy_crf.tagger_features.v1"

[loss]
@losses = "spacy_crf.LogLikelihood.v1"

[optimizer]
@optimizers = "spacy_crf.Minibatch.v1"
learn_rate = 0.02

[scorer]
@scorers = "spacy_crf.tagger_scorer.v1"
"""

DEFAULT_SEMICRF_NER = """
[model]
@architectures = "spacy_crf.SemiMarkov.v1"
longest_segment = null
possible_transitions = true

[model.emissions]
@architectures = "spacy_crf.SparseEmissions.v1"
min_count = 1
possible_states = false

[model.emissions.features]
@misc = "spacy_crf.ner_features.v1"

[model.segments]
@architectures = "spacy_crf.SparseSegments.v1"
min_count = 1
possible_states = false

[model.segments.features]
@misc = "spacy_crf.segment_features.v1"

[loss]
@losses = "spacy_crf.LogLikelihood.v1"

[optimizer]
@optimizers = "spacy_crf.Minibatch.v1"
learn_rate = 0.02

[scorer]
@scorers = "spacy.ner_scorer.v1"
"""


# Settings that say how to predict
PREDICTION = {"confidence": False, "decode": "viterbi", "min_prob": 0.0, "constraints": None}

# Settings that all components have
SUPERVISION = {"alternatives_spans_key": None, "incorrect_spans_key": None}

if not Doc.has_extension("crf_weight"):
    Doc.set_extension("crf_weight", default=1.0)  # how much a Doc counts in training


def _declared(nlp: Language, factory: str, component: "CRFPipe") -> "CRFPipe":
    """The component. What `nlp.analyze_pipes` says of a factory spaCy takes from it right after it made a component, and what
    ours read and write is up to their settings."""
    meta = replace(nlp.get_factory_meta(factory), assigns=component.assigns(), requires=component.requires())
    Language.set_factory_meta(factory, meta)  # whatever the language, also for a pipeline that sources the component
    return component


@Language.factory(
    "crf_ner",
    assigns=["doc.ents", "token.ent_iob", "token.ent_type"],
    default_config={
        "scheme": "BILUO",
        **PREDICTION,
        **SUPERVISION,
        **Config().from_str(DEFAULT_CRF_NER),
    },
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_per_type": None},
)
def make_crf_ner(
    nlp: Language,
    name: str,
    model: Model,
    loss: Any,
    scheme: str,
    confidence: bool,
    decode: str,
    min_prob: float,
    constraints: Optional[Any],
    optimizer: Optional[Optimizer],
    alternatives_spans_key: Optional[str],
    incorrect_spans_key: Optional[str],
    scorer: Optional[Callable],
):
    from .crf_ner import CRFEntityRecognizer

    component = CRFEntityRecognizer(
        nlp.vocab,
        model,
        name,
        loss=loss,
        scheme=scheme,
        confidence=confidence,
        decode=decode,
        min_prob=min_prob,
        constraints=constraints,
        optimizer=optimizer,
        alternatives_spans_key=alternatives_spans_key,
        incorrect_spans_key=incorrect_spans_key,
        scorer=scorer,
    )
    return _declared(nlp, "crf_ner", component)


@Language.factory(
    "crf_tagger",
    assigns=["token.tag"],
    default_config={
        "attribute": "tag",
        "overwrite": False,
        "neg_prefix": "!",
        **PREDICTION,
        **SUPERVISION,
        **Config().from_str(DEFAULT_CRF_TAGGER),
    },
    default_score_weights={"crf_tag_acc": 1.0, "tag_acc": None, "pos_acc": None, "morph_acc": None},
)
def make_crf_tagger(
    nlp: Language,
    name: str,
    model: Model,
    loss: Any,
    attribute: str,
    overwrite: bool,
    neg_prefix: str,
    confidence: bool,
    decode: str,
    min_prob: float,
    constraints: Optional[Any],
    optimizer: Optional[Optimizer],
    alternatives_spans_key: Optional[str],
    incorrect_spans_key: Optional[str],
    scorer: Optional[Callable],
):
    from .crf_tagger import CRFTagger

    component = CRFTagger(
        nlp.vocab,
        model,
        name,
        loss=loss,
        attribute=attribute,
        overwrite=overwrite,
        neg_prefix=neg_prefix,
        confidence=confidence,
        decode=decode,
        min_prob=min_prob,
        constraints=constraints,
        optimizer=optimizer,
        alternatives_spans_key=alternatives_spans_key,
        incorrect_spans_key=incorrect_spans_key,
        scorer=scorer,
    )
    return _declared(nlp, "crf_tagger", component)


@Language.factory(
    "semicrf_ner",
    assigns=["doc.ents", "token.ent_iob", "token.ent_type"],
    default_config={**PREDICTION, **SUPERVISION, **Config().from_str(DEFAULT_SEMICRF_NER)},
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_per_type": None},
)
def make_semicrf_ner(
    nlp: Language,
    name: str,
    model: Model,
    loss: Any,
    confidence: bool,
    decode: str,
    min_prob: float,
    constraints: Optional[Any],
    optimizer: Optional[Optimizer],
    alternatives_spans_key: Optional[str],
    incorrect_spans_key: Optional[str],
    scorer: Optional[Callable],
):
    from .semicrf_ner import SemiCRFEntityRecognizer

    component = SemiCRFEntityRecognizer(
        nlp.vocab,
        model,
        name,
        loss=loss,
        confidence=confidence,
        decode=decode,
        min_prob=min_prob,
        constraints=constraints,
        optimizer=optimizer,
        alternatives_spans_key=alternatives_spans_key,
        incorrect_spans_key=incorrect_spans_key,
        scorer=scorer,
    )
    return _declared(nlp, "semicrf_ner", component)
