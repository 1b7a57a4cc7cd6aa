"""The gain of a parser of names by lists of names: ``python -m tests.benchmarks.names``.

Names of people are made of the given names and surnames of the US census by templates, with the labels of probablepeople. Half of
the words are in the lists that models read. A name has all its words from this half, or none.
"""

import random
import statistics
import tempfile
from pathlib import Path
from zlib import crc32

import typer
from spacy.util import load_config

from spacy_crf.cross_validation import PACKAGED, fit
from spacy_crf.race import WordKnowledge

from .data import ROOT, Sentence, data_folder, iob2_tags, make_doc, make_examples
from .measure import entity_f1, show

FILES = {"first_names": "first_names_us.txt", "surnames": "surnames_us.txt"}
# Each with its frequency. A word that belongs to the field before it is written behind a plus
TEMPLATES = {
    "GivenName Surname": 6,
    "Surname GivenName": 5,
    "Surname +, GivenName": 3,
    "Surname +, GivenName MiddleInitial": 3,
    "Surname GivenName MiddleInitial": 4,
    "Surname GivenName MiddleName": 2,
    "GivenName MiddleName Surname": 3,
    "GivenName MiddleInitial Surname": 3,
    "PrefixMarital GivenName Surname": 2,
    "PrefixOther GivenName MiddleInitial Surname SuffixGenerational": 2,
    "PrefixMarital Surname": 1,
    "GivenName Surname +, SuffixOther": 2,
    "FirstInitial Surname": 1,
    "Surname FirstInitial": 1,
    "FirstInitial MiddleName Surname": 1,
    "GivenName And GivenName Surname": 2,
    "Surname GivenName And GivenName": 1,
    "GivenName Surname Surname": 1,
}
VALUES = {
    "PrefixMarital": ["Mr.", "Mrs.", "Ms.", "Miss", "Mr"],
    "PrefixOther": ["Dr.", "Prof.", "Rev.", "Hon.", "Dr"],
    "SuffixGenerational": ["Jr.", "Sr.", "III", "II", "Jr"],
    "SuffixOther": ["PhD", "M.D.", "Esq.", "CPA", "DDS"],
    "And": ["and", "&"],
}
HEADER = ("known of words", "F1", "whole", "F1, in lists", "whole", "F1, in no list", "whole")


def main(
    size: int = typer.Option(200, help="Annotated names."),
    tested: int = typer.Option(2000, help="Names of the test."),
    seeds: int = typer.Option(3, help="Draws of the names."),
) -> None:
    words = {
        name: [word for word in (data_folder() / "gazetteers" / file).read_text("utf8").split("\n") if word]
        for name, file in FILES.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        gazetteers = {}
        for name in FILES:
            path = Path(folder, f"{name}.txt")
            path.write_text("\n".join(filter(_is_in_lists, words[name])), encoding="utf8")
            gazetteers[name] = str(path)
        lists = {"lists": WordKnowledge([f"in:{name}[-1..1]" for name in FILES], {"gazetteers": gazetteers})}
        rows = []
        for known in ({}, PACKAGED, lists, PACKAGED | lists):
            title = " and ".join(known) or "nothing"
            results = []
            for seed in range(seeds):
                random_state = random.Random(seed)
                train = [_name(words, n % 2 == 0, random_state) for n in range(size)]
                test = [_name(words, n % 2 == 0, random_state) for n in range(tested)]
                results.append(_row(train, test, known))
            rows.append([title, *map(statistics.mean, zip(*results))])
            show(f"{size} names, mean of {seeds} draws", HEADER, rows[-1:])
    show(f"{size} names, mean of {seeds} draws", HEADER, rows)


def _is_in_lists(word: str) -> bool:
    return crc32(word.lower().encode()) % 2 == 0


def _name(words: dict[str, list[str]], in_lists: bool, random_state: random.Random) -> Sentence:
    """Draw a name whose words are all in the lists, or in none."""
    template = random_state.choices([*TEMPLATES], [*TEMPLATES.values()])[0]
    is_upper = random_state.random() < 0.4  # as in records of offices
    drawn = []
    tags = []
    for field in template.split():
        if field.startswith("+"):
            drawn.append(field[1:])
            tags.append(f"I-{tags[-1][2:]}")
            continue
        word = _word(words, field, in_lists, random_state)
        drawn.append(word.upper() if is_upper else word)
        tags.append(f"B-{field}")
    return Sentence(drawn, None, tags)


def _word(words: dict[str, list[str]], field: str, in_lists: bool, random_state: random.Random) -> str:
    if field in VALUES:
        return random_state.choice(VALUES[field])
    if field.endswith("Initial"):
        return random_state.choice("ABCDEFGHIJKLMNOPRSTVW") + random_state.choice([".", ""])
    possible = words["surnames" if field == "Surname" else "first_names"]
    while True:
        # The most frequent names are first
        word = possible[int(len(possible) * random_state.random() ** 3)]
        if _is_in_lists(word) == in_lists:
            return word


def _row(train: list[Sentence], test: list[Sentence], known: dict[str, WordKnowledge]) -> list[float]:
    """F1 and share of whole names that are right: of all test names, of those in lists, and of those in no list."""
    config = load_config(ROOT / "configs" / "crf_ner.cfg", interpolate=True)
    nlp, _ = fit(config, lambda nlp: make_examples(nlp.vocab, train), words=known, thresholds=False)
    predicted = [iob2_tags(doc) for doc in nlp.pipe(make_doc(nlp.vocab, name) for name in test)]
    gold = [name.tags for name in test]
    row = []
    for part in (slice(None), slice(0, None, 2), slice(1, None, 2)):
        whole = [one == other for one, other in zip(gold[part], predicted[part])]
        row += [entity_f1(gold[part], predicted[part]), 100 * statistics.mean(whole)]
    return row


if __name__ == "__main__":
    typer.run(main)
