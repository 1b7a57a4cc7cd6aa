"""What uses models of the plugin, with models of the lab: exports, clusters, tables by label."""

from tests import components, test_lite
from tests.features import test_clusters
from tests.pipeline import test_tables_by_label

from .util import for_rows

KERNELS = {"@architectures": "spacy_crf_lab.KernelEmissions.v1", "features": components.FEATURES}
LATENT = {"@architectures": "spacy_crf_lab.LatentChain.v1", "emissions": components.EMISSIONS}
EMISSIONS = test_tables_by_label.EMISSIONS
TEXTS = {"@architectures": "spacy_crf_lab.LabelGraph.v1", "cliques": {}, "emissions": EMISSIONS}


def _hierarchy(table):
    cliques = {"tree": {"@misc": "spacy_crf_lab.Hierarchy.v1", "parents": table}}
    return {"multilabel": True, "model": {**TEXTS, "cliques": cliques}}


def _latent(table):
    return {"model": {"@architectures": "spacy_crf_lab.LatentChain.v1", "hidden": table, "emissions": EMISSIONS}}


TABLES = {
    "threshold of texts": (
        "crf_textcat",
        lambda t: {"multilabel": True, "threshold": t, "model": TEXTS},
        lambda pipe: pipe.cfg["threshold"],
        0.4,
    ),
    "pseudo": (
        "crf_ner",
        lambda t: {"loss": {"@losses": "spacy_crf_lab.PseudoLikelihood.v1", "label_weights": t}},
        lambda pipe: pipe.loss.label_weights,
        2.0,
    ),
    "parents": (
        "crf_textcat",
        _hierarchy,
        lambda pipe: pipe.model.attrs["node"]._cliques["tree"].parents,
        "tag:PRP$%24",
    ),
    "hidden": ("crf_ner", _latent, lambda pipe: pipe.model.attrs["hidden"], 2),
}

globals().update(
    for_rows(
        "layer",
        ["spacy_crf_lab.KernelEmissions.v1", "spacy_crf_lab.BoostedEmissions.v1"],
        test_clusters.test_clusters_that_know_no_word,
    )
    | for_rows(
        "config, reason",
        [
            ({"model": {"emissions": KERNELS}}, "hashed.*a kernel"),
            ({"model": LATENT}, "a model of the kind latent_chain"),
        ],
        test_lite.test_what_lite_can_not_compute_is_told,
    )
    | for_rows("factory, config, found, value", TABLES, test_tables_by_label.test_every_label_is_the_same_after_loading)
)
