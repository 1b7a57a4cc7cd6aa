import pytest

from spacy_crf.features.templates import parse_template, parse_templates


@pytest.mark.parametrize(
    "text, expected",
    [
        ("lower[0]", ["lower[0]"]),
        ("bias", ["bias"]),
        ("lower[-2..2]", ["lower[-2]", "lower[-1]", "lower[0]", "lower[1]", "lower[2]"]),
        ("orth[-1]|orth[0]", ["orth[-1]|orth[0]"]),
        (
            " shape[ -1 .. +1 ] | in:cities[0]",
            ["shape[-1]|in:cities[0]", "shape[0]|in:cities[0]", "shape[1]|in:cities[0]"],
        ),
        ("tag[0..1]|pos[0..1]", ["tag[0]|pos[0]", "tag[0]|pos[1]", "tag[1]|pos[0]", "tag[1]|pos[1]"]),
        ("ext:my_flag[-1]", ["ext:my_flag[-1]"]),
        ("fn:shout.v1[0]", ["fn:shout.v1[0]"]),
    ],
)
def test_template_language(text, expected):
    assert [str(template) for template in parse_template(text)] == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "lower",
        "lower[]",
        "lower[x]",
        "lower[0",
        "lower[0]|",
        "|",
        "bias[0]",
        "in:[0]",
        "lower[0] [1]",
        None,
        7,
    ],
)
def test_unreadable_template_is_shown(text):
    with pytest.raises(ValueError, match="CRF101") as error:
        parse_template(text)
    assert repr(text)[1:-1] in str(error.value)


@pytest.mark.parametrize("text", ["lower[2..-2]", "lower[21]", "lower[-99..0]"])
def test_offsets_out_of_range(text):
    with pytest.raises(ValueError, match="CRF102") as error:
        parse_template(text)
    assert text in str(error.value)


def test_each_template_once_in_order():
    templates = parse_templates(["lower[0..1]", "orth[0]", "lower[-1..0]"])
    assert [str(template) for template in templates] == ["lower[0]", "lower[1]", "orth[0]", "lower[-1]"]
