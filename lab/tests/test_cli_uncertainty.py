"""The commands that show by how much probabilities vary between drawn weights."""

import json

import pytest
import spacy
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.posterior import Draws, disagreement, draw_weights

from .test_laplace_propagation import trained


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output + str(result.exception or "")


@pytest.mark.parametrize("component", ["crf_ner", "crf_tagger"])
def test_probabilities_are_printed_and_their_deviations(component, tmp_path):
    nlp, pipe, _ = trained(component)
    nlp.to_disk(tmp_path)
    code, output = run("uncertainty", tmp_path, "Ann met Lee")
    pipe.decoder = Draws(20)
    doc = nlp("Ann met Lee")
    found = doc.ents[0] if component == "crf_ner" else doc[0]
    assert code == 0 and f"{found._.crf_prob:.0%}   crf_prob_sd {found._.crf_prob_sd:.1%}" in output
    assert "crf_prob_sd" not in run("show", tmp_path, "Ann met Lee")[1]


def test_annotate_sorts_by_how_much_drawn_weights_disagree(tmp_path):
    nlp, pipe, _ = trained()
    nlp.to_disk(tmp_path / "model")
    texts = ["Ann met Lee in Rome", "in June", "Rome saw Ann Ann June", "Bob"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    code, output = run(
        "annotate", tmp_path / "model", tmp_path / "texts.txt", "-o", tmp_path / "out.jsonl", "--sort", "variance"
    )
    assert code == 0, output
    items = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    pipe.decoder = Draws(20)
    by_text = {text: disagreement(pipe, nlp.make_doc(text)) for text in texts}
    assert len(set(by_text.values())) == 4
    assert [item["text"] for item in items] == sorted(texts, key=lambda text: -by_text[text])


def test_commands_need_variances(tmp_path):
    nlp, _, _ = trained(optimizer=LBFGS(l2=0.1))
    nlp.to_disk(tmp_path / "model")
    assert "CRF644" in run("uncertainty", tmp_path / "model", "Ann")[1]
    (tmp_path / "texts.txt").write_text("Ann")
    options = (tmp_path / "model", tmp_path / "texts.txt", "-o", tmp_path / "out.jsonl", "--sort", "variance")
    assert "CRF644" in run("annotate", *options)[1]
    categorizer = spacy.blank("en").add_pipe("crf_spancat")
    with pytest.raises(ValueError, match=r"CRF645.*'crf_spancat'.*several chains"):
        draw_weights([categorizer])
