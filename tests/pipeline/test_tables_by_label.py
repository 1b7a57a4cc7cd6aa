"""Tables by label in configs: any label is the same after saving and loading, in every setting that takes a table."""

import pytest
import spacy
from spacy.util import Config

from spacy_crf.checks import by_label, in_config
from spacy_crf.pipeline import thresholds

PIECES = [
    *"=:#;[]@$%{}()<>\"'\\/|&*+-.,!?~^`_",
    " ",
    "\t",
    "\n",
    "\r",
    "\0",
    "\x0b",
    "\x1c",
    "\x85",
    "\xa0",
    "\u2028",
    "\u3000",
    "ä",
]
WORDS = [
    "true",
    "null",
    "1",
    "DEFAULT",
    "tag:NN",
    "tag:PRP$",
    "Number=Sing|Case=Nom",
    "NAME:PERSON",
    "#A;B",
    "[A]=B",
    "@misc",
]
WORDS += ["${a}", "${a.b}", "${a:b}", "$${", "%24", "%2524", "%25$", "%$24", "__SECTION__:a", "𝒜"]
HOSTILE = [
    "",
    *WORDS,
    *PIECES,
    *(p + "A" for p in PIECES),
    *("A" + p for p in PIECES),
    *("A" + p + "B" for p in PIECES),
]

EMISSIONS = {
    "@architectures": "spacy_crf.SparseEmissions.v1",
    "features": {"@misc": "spacy_crf.text_features.v1"},
}


def _loss(name, setting):
    return lambda table: {"loss": {"@losses": f"spacy_crf.{name}.v1", setting: table}}


# Each setting that takes a table by label: the factory, its config with a table, what the component then has, a value, and the
# name of this value in the component
SETTINGS = {
    "min_prob": ("crf_ner", lambda t: {"decode": "spans", "min_prob": t}, lambda pipe: pipe.cfg["min_prob"], 0.4),
    "threshold": ("crf_spancat", lambda t: {"threshold": t}, lambda pipe: pipe.cfg["threshold"], 0.4),
    "candidates": ("crf_candidates", lambda t: {"min_prob": t}, lambda pipe: pipe.min_prob, 0.4),
    "label_weights": ("crf_ner", _loss("LogLikelihood", "label_weights"), lambda pipe: pipe.loss.label_weights, 2.0),
    "cost": ("crf_ner", _loss("MaxMargin", "cost"), lambda pipe: pipe.loss.cost, {"O": 2.0, "tag:PRP$": 3.0}),
    "longest_segment": (
        "semicrf_ner",
        lambda t: {"model": {"longest_segment": t}},
        lambda pipe: pipe.model.attrs["longest_segment"],
        3,
    ),
}


def piped(factory, config):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config=config)
    return nlp


@pytest.mark.parametrize("factory, config, found, value", SETTINGS.values(), ids=SETTINGS)
def test_every_label_is_the_same_after_loading(factory, config, found, value, tmp_path):
    """Saved pipelines could not be loaded, or lost labels in silence, if their names had = or :, or began with # or [."""
    table = dict.fromkeys(HOSTILE, value)
    nlp = piped(factory, config(in_config(table)))
    assert found(nlp.get_pipe(factory)) == table
    for number in range(3):  # spaCy writes some characters twice at each save
        nlp.to_disk(tmp_path / f"{number}")
        nlp = spacy.load(tmp_path / f"{number}")
        assert found(nlp.get_pipe(factory)) == table
    again = piped(factory, config(in_config(table)))
    assert found(again.from_bytes(nlp.to_bytes()).get_pipe(factory)) == table


@pytest.mark.parametrize("value", [0.4, "tag:NN", "US$", {"O": 2.0}, {"tag:NN": 2.0, "PRP$": 1.0}], ids=str)
def test_what_a_config_keeps_and_what_is_refused(value, tmp_path):
    """A section of a config is kept as it is, or refused with the pairs to write; pairs are always kept."""
    kept = []
    for n, label in enumerate(HOSTILE):
        table = {label: value}
        config = Config({"x": {"table": in_config(table)}})
        config.to_disk(tmp_path / "config.cfg")
        loaded = Config().from_disk(tmp_path / "config.cfg", interpolate=bool(n % 2)).interpolate()["x"]["table"]
        read = by_label("x", "table", loaded, "values", text=True)
        assert {
            row: by_label("x", row, of, "numbers") if isinstance(value, dict) else of for row, of in read.items()
        } == table
        if in_config(table) is table:
            kept.append(label)
            assert by_label("x", "table", table, "values", text=True) == table
        else:
            with pytest.raises(ValueError, match=r"CRF925: x: .* Write table = "):
                by_label("x", "table", table, "values", text=True)
    usual = {"A-B", "A_B", "A/B", "A|B", "ä", "A B", "DEFAULT", "true", "1"}
    assert usual <= {*kept} or value in ("US$", {"tag:NN": 2.0, "PRP$": 1.0})


@pytest.mark.parametrize(
    "value, code",
    [
        ([["A", 0.5], ["A", 0.6]], "CRF020"),
        ([["A", 0.5], "B"], "CRF020"),
        ([["A", {"B": 0.5}]], "CRF020"),
        ([[1, 0.5]], "CRF020"),
        ("A", "CRF020"),
        ([["US$", 0.5]], r'CRF925.*\[\["US%24", 0.5\]\]'),
        ({"tag": "NN = 0.5"}, "CRF926.*tag = NN = 0.5"),
    ],
)
def test_what_is_no_table(value, code):
    with pytest.raises(ValueError, match=code):
        by_label("x", "table", value, "probabilities")


def test_a_config_that_the_parser_cut_is_told():
    """spaCy's own message was "not a valid float" for a label that the config does not have."""
    config = Config().from_str("[min_prob]\ntag:NN = 0.4\n* = 0.2")
    with pytest.raises(ValueError, match=r"CRF926.*tag = NN = 0.4"):
        piped("crf_tagger", config)


def test_fitted_thresholds_of_hostile_labels_are_saved(tmp_path):
    """`crf threshold --per-label` and `per_label = true` said that they had saved what nobody could load."""
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner")
    found = {"NAME:PERSON": 0.4, "US$": 0.3, "*": 0.2}
    thresholds.use(nlp, pipe, found)
    assert pipe.cfg["min_prob"] == found
    assert nlp.config["components"]["crf_ner"]["min_prob"] == [["NAME:PERSON", 0.4], ["US%24", 0.3], ["*", 0.2]]
    nlp.to_disk(tmp_path)
    assert spacy.load(tmp_path).get_pipe("crf_ner").cfg["min_prob"] == found
    thresholds.use(nlp, pipe, {"PER": 0.4})
    assert nlp.config["components"]["crf_ner"]["min_prob"] == {"PER": 0.4}


def test_groups_of_labels_with_dollars_are_loaded(tmp_path):
    """spaCy writes $ twice into the config: the groups were not those of the saved model, and spans went to another key."""
    nlp = piped("crf_spancat", {"groups": [["US$", "EUR"]], "spans_key": "money$"})
    for label in ("US$", "EUR"):
        nlp.get_pipe("crf_spancat").add_label(label)
    for number in range(3):
        nlp.to_disk(tmp_path / f"{number}")
        nlp = spacy.load(tmp_path / f"{number}")
        assert nlp.get_pipe("crf_spancat").cfg["groups"] == [["US$", "EUR"]]
        assert nlp.get_pipe("crf_spancat").key == "money$"
