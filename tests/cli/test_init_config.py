"""``python -m spacy crf init-config``: what it writes is complete, trains, and is what ``configs/`` says."""

from pathlib import Path

import pytest
from spacy.util import load_config
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli.configs import CONFIGS, PRESETS
from tests import test_configs

OPTIMIZED = [
    *((component, preset) for component in ("crf_ner", "semicrf_ner") for preset in ("fast", "accurate", "partial")),
    ("crf_tagger", "fast"),
]
FILES = {  # which test_configs trains with
    **{("crf_ner", "fast"): "crf_ner", ("crf_ner", "accurate"): "crf_ner_hybrid", ("crf_ner", "pool"): "crf_ner_pool"},
    **{("crf_ner", "neural"): "crf_ner_tok2vec", ("crf_ner", "stream"): "crf_ner_stream"},
    **{("crf_tagger", "fast"): "crf_tagger", ("semicrf_ner", "fast"): "semicrf_ner"},
    ("crf_spancat", "fast"): "crf_spancat",
    ("crf_textcat", "partial"): "crf_textcat",
}
# Without "words", which needs files: test_lookups
ALL = [(component, preset) for component, presets in PRESETS.items() for preset in presets if preset != "words"]


def run(*args):
    result = CliRunner().invoke(app, ["init-config", *map(str, args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def write(path, component, preset, *args):
    code, output = run("--component", component, "--preset", preset, "-o", path, *args)
    assert code == 0 and path.name in output, output
    return path


def test_a_clone_has_the_folder_beside_the_package():
    assert CONFIGS.samefile(Path(__file__).parents[2] / "configs")


@pytest.mark.parametrize("component, preset", FILES)
def test_some_are_the_files(component, preset, tmp_path):
    path, file = write(tmp_path / "my.cfg", component, preset), CONFIGS / f"{FILES[component, preset]}.cfg"
    assert load_config(path, interpolate=False) == load_config(file, interpolate=False)


@pytest.mark.parametrize("component, preset", ALL)
def test_every_preset_is_complete(component, preset, tmp_path):
    path = write(tmp_path / "my.cfg", component, preset, "--lang", "de")
    test_configs.test_config_is_complete(path, tmp_path)
    assert load_config(path)["nlp"] | {"lang": "de", "pipeline": [component]} == load_config(path)["nlp"]
    text = path.read_text(encoding="utf8")
    assert text.startswith(f"# {component}, {preset}: ") and text.count("\n# ") > 15
    if component != "crf_ner":
        assert "crf_ner" not in text.replace("semicrf_ner", "").replace("crf_ner_", "")


@pytest.mark.parametrize("component, preset", [pair for pair in ALL if pair not in FILES])
def test_every_other_preset_trains(component, preset, corpus, tmp_path):
    path = write(tmp_path / "my.cfg", component, preset)
    test_configs.test_trains_three_steps_and_predicts_the_same_after_loading(path, corpus, tmp_path)


@pytest.mark.parametrize("component, preset", OPTIMIZED)
def test_more_is_found_where_that_is_asked_for(component, preset, tmp_path):
    """Nothing but decoding and l1 differ, and both files are complete."""
    path = write(tmp_path / "my.cfg", component, preset, "--optimize", "accuracy")
    test_configs.test_config_is_complete(path, tmp_path)
    config = load_config(path, interpolate=False)
    plain = load_config(write(tmp_path / "plain.cfg", component, preset, "--optimize", "efficiency"), interpolate=False)
    assert plain == load_config(write(tmp_path / "default.cfg", component, preset), interpolate=False)
    assert plain["components"][component]["decode"] == "viterbi"
    if component == "crf_tagger":
        plain["components"][component]["decode"] = "posterior"
    else:
        plain["components"][component].update(decode="spans", min_prob=0.5)
        fit = {"@callbacks": "spacy_crf.fit_min_prob.v1", "path": "${paths.dev}"}
        plain["training"]["before_to_disk"] = {**fit, "component": None, "beta": 1.0, "per_label": False, "limit": 1000}
        if plain["training"]["optimizer"]["@optimizers"] == "spacy_crf.LBFGS.v1":
            plain["training"]["optimizer"]["l1"] = 0.05
    assert config == plain
    head = path.read_text(encoding="utf8").partition("[")[0]
    assert " prediction takes longer.\n" in head and (f"crf fit train.spacy --config {path}" in head) == (
        preset in ("fast", "partial")
    )


def test_the_accurate_config_of_crf_ner_is_a_file(tmp_path):
    path = write(tmp_path / "my.cfg", "crf_ner", "fast", "--optimize", "accuracy")
    assert load_config(path, interpolate=False) == load_config(CONFIGS / "crf_ner_threshold.cfg", interpolate=False)


@pytest.mark.parametrize("stem", ["crf_ner_large", "crf_tagger_order"])
def test_files_of_the_package_come_as_they_are(stem, tmp_path):
    """Who has the package from pip has no folder ``configs/`` that pages could name."""
    code, output = run("--file", stem, "-o", tmp_path / "my.cfg", "--lang", "de")
    assert code == 0 and "my.cfg" in output
    config = load_config(tmp_path / "my.cfg", interpolate=False)
    assert config["nlp"].pop("lang") == "de"
    shipped = load_config(CONFIGS / f"{stem}.cfg", interpolate=False)
    assert config | {"nlp": config["nlp"] | {"lang": "en"}} == shipped
    assert "configs/" not in (tmp_path / "my.cfg").read_text(encoding="utf8")


def test_what_is_written_stays(tmp_path):
    path = write(tmp_path / "my.cfg", "crf_ner", "fast")
    code, output = run("--component", "crf_tagger", "-o", path)
    assert code == 1 and "CRF750" in output and "crf_tagger" not in path.read_text(encoding="utf8")
    write(path, "crf_tagger", "fast", "--force")
    assert "crf_tagger" in path.read_text(encoding="utf8")


def test_without_a_file_it_is_printed():
    code, output = run("--component", "crf_ner", "--preset", "partial")
    assert code == 0 and 'alternatives_spans_key = "alternatives"\n' in output


@pytest.mark.parametrize(
    "args, said",
    [
        (["--component", "crf_textcat", "--preset", "neural"], "CRF751: crf_textcat has no preset 'neural'"),
        (["--component", "crf_ner", "--lang", "xyz"], "CRF020"),
        (["--component", "nothing"], "crf_textcat"),
        (["--component", "crf_ner", "--preset", "best"], "accurate"),
        ([], "CRF745: The options given (nothing)"),
        (["--component", "crf_ner", "--file", "crf_ner"], "CRF745: The options given (--component and --file)"),
        (["--preset", "fast", "--file", "crf_ner"], "CRF745"),
        (["--optimize", "accuracy", "--file", "crf_ner"], "CRF745"),
        (["--component", "crf_textcat", "--optimize", "accuracy"], "CRF768: --optimize accuracy changes how labels"),
        (["--component", "crf_ner", "--optimize", "speed"], "efficiency"),
        (["--file", "nothing"], "crf_ner_large"),
    ],
)
def test_mistakes_are_named(args, said):
    code, output = run(*args)
    assert code != 0 and said in " ".join(output.split())


@pytest.mark.parametrize(
    "lang, needs, args, block",
    [
        ("de", "", [], {"@tokenizers": "spacy.Tokenizer.v1"}),
        ("zh", "", [], {"@tokenizers": "spacy.zh.ChineseTokenizer", "segmenter": "char"}),
        ("zh", "jieba", ["--segmenter", "jieba"], {"@tokenizers": "spacy.zh.ChineseTokenizer", "segmenter": "jieba"}),
        ("ja", "sudachipy", [], {"@tokenizers": "spacy.ja.JapaneseTokenizer", "split_mode": None}),
        ("ko", "natto", [], {"@tokenizers": "spacy.ko.KoreanTokenizer"}),
        ("th", "pythainlp", [], {"@tokenizers": "spacy.th.ThaiTokenizer"}),
        ("vi", "pyvi", [], {"@tokenizers": "spacy.vi.VietnameseTokenizer", "use_pyvi": True}),
    ],
)
@pytest.mark.parametrize("choice", [["--component", "crf_ner"], ["--file", "crf_ner_stream"]])
def test_a_language_has_its_own_tokenizer(lang, needs, args, block, choice, tmp_path):
    """With the tokenizer of other languages, a model of Chinese words found nothing in raw texts."""
    if needs:
        pytest.importorskip(needs)
    code, said = run(*choice, "--lang", lang, *args, "-o", tmp_path / "my.cfg")
    assert code == 0, said
    assert load_config(tmp_path / "my.cfg")["nlp"]["tokenizer"] == block
    test_configs.test_config_is_complete(tmp_path / "my.cfg", tmp_path)


def test_a_segmenter_is_for_chinese_alone():
    code, said = run("--component", "crf_ner", "--segmenter", "char")
    assert code == 1 and "CRF020: init-config: --segmenter" in said


def test_a_tokenizer_that_learns_needs_no_package_of_the_language(tmp_path):
    path = tmp_path / "config.cfg"
    result = CliRunner().invoke(app, ["init-config", "--file", "crf_tokenizer", "--lang", "th", "-o", str(path)])
    assert result.exit_code == 0, result.output
    config = load_config(path)
    assert config["nlp"]["lang"] == "th"
    assert config["nlp"]["tokenizer"]["@tokenizers"] == "spacy_crf.Tokenizer.v1"
    assert config["initialize"]["tokenizer"]["l2"] == 0.1
