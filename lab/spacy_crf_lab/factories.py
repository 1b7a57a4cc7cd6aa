"""The factories of the lab's components, which spaCy finds by their entry points; as light to import as those of the plugin."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from spacy.language import Language
from spacy.util import Config
from thinc.api import Model, Optimizer

from spacy_crf.pipeline.factories import made

from . import links  # noqa: F401  sets the extensions

if TYPE_CHECKING:
    from .number_scorer import CRFScorer
    from .smoothing import CRFSmooth

_NUMBERS = """
[model]
@architectures = "spacy_crf_lab.GaussianChain.v1"
similar = null
functions = null

[model.emissions]
@architectures = "spacy_crf.SparseEmissions.v1"
min_count = 1
possible_states = false

[model.emissions.features]
@misc = "spacy_crf.text_features.v1"

[loss]
@losses = "spacy_crf.LogLikelihood.v1"

[optimizer]
@optimizers = "spacy_crf.Minibatch.v1"
learn_rate = 0.02

[scorer]
@scorers = "spacy_crf_lab.number_scorer.v1"
"""


@Language.factory(
    "crf_scorer",
    default_config={
        "attribute": "crf_number",
        "unit": "doc",
        "max_words": 500_000,
        **Config().from_str(_NUMBERS),
    },
    default_score_weights={
        "number_r2": 1.0,
        "number_rmse": None,
        "number_mae": None,
        "number_correlation": None,
        "number_coverage": None,
    },
)
def make_crf_scorer(
    nlp: Language,
    name: str,
    model: Model,
    loss: Any,
    attribute: str,
    unit: str,
    max_words: int,
    optimizer: Optional[Optimizer],
    scorer: Optional[Callable],
) -> "CRFScorer":
    """Construct a CRFScorer: each token, sentence or text gets a number, such as a price, a duration or the intensity of a
    sentiment. Numbers that a Doc has already are kept, and the others are those that fit to them.

    model (Model): The distribution of the numbers of Docs: `spacy_crf_lab.GaussianChain.v1`.
    loss (Loss): `spacy_crf.LogLikelihood.v1`.
    attribute (str): Name of the extension that holds the number, which is registered with None by default if it is not there.
    unit (str): What has a number: "token" (`token._.NAME`), "sent" (`sent._.NAME`) or "doc" (`doc._.NAME`).
    max_words (int): Different words whose features the component caches, as in `crf_tagger`.
    optimizer (Optional[Optimizer]): The component's own optimizer, as in `crf_tagger`.
    scorer (Optional[Callable]): The scoring method. Defaults to `spacy_crf_lab.number_scorer.v1`.
    """
    from .number_scorer import CRFScorer

    settings = {"attribute": attribute, "unit": unit, "max_words": max_words, "optimizer": optimizer, "scorer": scorer}
    return made(CRFScorer, "crf_scorer", nlp, model=model, name=name, loss=loss, **settings)


@Language.factory(
    "crf_smooth",
    assigns=["doc.ents", "token.ent_iob", "token.ent_type"],
    requires=["doc.ents"],
    default_config={"component": "ner", "smoothing": {"@misc": "spacy_crf_lab.smooth.v1"}},
)
def make_crf_smooth(nlp: Language, name: str, component: str, smoothing: Any) -> "CRFSmooth":
    """Construct a CRFSmooth, which gives equal texts of a Doc labels that fit together, after any component that writes
    `doc.ents`. It is not trained.

    component (str): Name of the component that has written the entities. Only `scores` other than "labels" ask it.
    smoothing (Smoothing): How labels are weighed against each other: `spacy_crf_lab.smooth.v1`.
    """
    from spacy_crf import checks

    from .smoothing import CRFSmooth, Smoothing

    checks.expect(
        isinstance(smoothing, Smoothing),
        f"Component '{name}'",
        "smoothing",
        smoothing,
        'a block such as [...smoothing] @misc = "spacy_crf_lab.smooth.v1"',
    )
    return CRFSmooth(nlp, name, component=component, smoothing=smoothing)
