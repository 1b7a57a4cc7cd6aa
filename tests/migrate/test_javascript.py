"""Patterns that are translated for JavaScript match the same in Node."""

import json
import random
import re
import shutil
import subprocess
import sys

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st

from spacy_crf.migrate.javascript import UntranslatableError, to_javascript
from tests.hostile_texts import hostile_text
from tests.util import draws

# Prints where patterns match in texts, as code points: the spans of all matches, or the end of the match at each place
SCRIPT = r"""
const {patterns, texts, flag} = JSON.parse(require("fs").readFileSync(0, "utf8"));
function matches(pattern, text) {
  const places = [];  // the code unit of each code point, and of the end
  for (let unit = 0; unit < text.length; unit += text.codePointAt(unit) > 0xffff ? 2 : 1) places.push(unit);
  places.push(text.length);
  const point = new Map(places.map((unit, n) => [unit, n]));
  if (flag == "g") {
    return [...text.matchAll(pattern)].map((match) => [point.get(match.index), point.get(match.index + match[0].length)]);
  }
  return places.map((unit) => {
    pattern.lastIndex = unit;
    return pattern.test(text) ? point.get(pattern.lastIndex) : null;
  });
}
const expressions = patterns.map(([source, flags]) => new RegExp(source, flags + flag));
console.log(JSON.stringify(expressions.map((pattern) => texts.map((text) => matches(pattern, text)))));
"""
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
ATOMS = [*"aAbB1é -ßſKK", r"\n", ".", "^", "$", r"\b", r"\B", r"\A", r"\Z", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S"]
ATOMS += ["[a-c]", "[^a]", r"[^\d\n]", r"[\w-]", "[é-ſ]", r"[^\W_]", r"\.", "/", r"\]", "𝒳", "[😀-😎x]"]
WRAPPED = [
    "(?:{})",
    "({})",
    "(?={})",
    "(?!{})",
    "(?i:{})",
    "(?s:{})",
    "(?m:{})",
    "(?a:{})",
    "(?ia:{})",
    "{}|{}",
    "{}{}",
]
WRAPPED += ["(?<={})", "(?<!{})", "(?:{})?", "(?:{})*", "(?:{})+?", "(?:{}){{1,2}}", "(?:{})??"]
WRAPPED += ["(?>{})", "(?:{})*+"] if sys.version_info >= (3, 11) else []
TEXTS = [
    "",
    "a",
    "A\n",
    "\n",
    "aAbB1",
    "é ß-ſ\nK",
    "a.b/c]d",
    "ab1_ab1",
    "𝒳a😀x",
    "Kk k\x85\x1c",
    "٣ı İi",
    "b\na\n",
    "ss ﬅ st µμ",
]


def matches_in_node(patterns: list[str], texts: list[str], flag: str) -> list[list]:
    """Where translated patterns match in Node: all matches for the flag "g", the ends of those at each place for "y"."""
    asked = {"patterns": [*map(to_javascript, patterns)], "texts": texts, "flag": flag}
    ran = subprocess.run(["node", "-e", SCRIPT], input=json.dumps(asked), capture_output=True, check=True, text=True)
    return json.loads(ran.stdout)


@needs_node
@pytest.mark.parametrize("lang", ["en", "de", "es", pytest.param("fr", marks=pytest.mark.slow)])
def test_the_patterns_of_spacy_match_the_same(lang):
    """French also has a pattern of 1.4 million characters."""
    tokenizer = spacy.blank(lang).tokenizer
    rules = [tokenizer.prefix_search, tokenizer.suffix_search, tokenizer.infix_finditer, tokenizer.token_match]
    patterns = [rule.__self__.pattern for rule in [*rules, tokenizer.url_match] if rule]
    rng = random.Random(1)
    texts = [hostile_text(rng, [*tokenizer.rules]) for _ in range(500)]
    for pattern, found in zip(patterns, matches_in_node(patterns, texts, "g")):
        compiled = re.compile(pattern)
        expected = [[[*match.span()] for match in compiled.finditer(text)] for text in texts]
        assert any(expected)
        assert found == expected


def patterns_of() -> st.SearchStrategy[str]:
    def wrapped(inner):
        return st.builds(lambda wrap, a, b: wrap.format(a, b), st.sampled_from(WRAPPED), inner, inner)

    return st.recursive(st.sampled_from(ATOMS), wrapped, max_leaves=8)


def is_translatable(pattern: str) -> bool:
    try:
        re.compile(pattern)
        to_javascript(pattern)
    except (re.error, UntranslatableError):
        return False
    return True


@needs_node
@draws(4)
@given(st.lists(patterns_of().filter(is_translatable), min_size=30, max_size=60))
def test_any_pattern_matches_the_same_at_each_place(patterns):
    """All matches would not be the same: of patterns that may match nothing, Node also finds matches inside of characters."""
    for pattern, found in zip(patterns, matches_in_node(patterns, TEXTS, "y")):
        compiled = re.compile(pattern)
        for text, ends in zip(TEXTS, found):
            matches = [compiled.match(text, place) for place in range(len(text) + 1)]
            assert ends == [match and match.end() for match in matches], (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (r"(a)\1", "GROUPREF"),
        (r"(?P<first>a)?(?(first)b|c)", "GROUPREF_EXISTS"),
        (r"(?:a?|b)*", "may match nothing"),
        (r"(?:\b){2}", "may match nothing"),
    ],
)
def test_what_javascript_matches_otherwise_is_refused(pattern, part):
    with pytest.raises(UntranslatableError, match=part):
        to_javascript(pattern)
