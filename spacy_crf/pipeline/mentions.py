"""Further training texts by mention replacement: entities become other entities of the same label (Dai & Adel 2020)."""

import random
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Optional, Union

from spacy.language import Language
from spacy.tokens import Doc, Token
from spacy.training import Corpus, Example

from .. import checks
from ..errors import Errors
from .annotation.entities import same_words

_OWNER = "spacy_crf.mentions.v1"
_SENT_START = {True: 1, False: -1, None: 0}


class Word(NamedTuple):
    """A token of a training text, with its annotation."""

    text: str
    space: bool  # whether a blank follows
    entity: str = ""  # a tag in IOB2; empty for missing annotation
    tag: str = ""
    sent_start: int = 0


Pools = dict[str, list[list[Word]]]  # mentions by label


def mentions(
    path: Union[str, Path],
    copies: int = 3,
    gazetteers: Optional[checks.ByLabel] = None,
    gazetteer_share: float = 0.5,
    seed: int = 0,
) -> Callable[[Language, Example], Iterator[Example]]:
    """An augmenter that adds copies of each text in which all entities are redrawn among mentions of their label
    (``spacy_crf.mentions.v1``). The same text always gets the same copies.

    path (str): The .spacy file or folder from which mentions are drawn: the training data.
    copies (int): Copies of each text. Copies without another mention are left out.
    gazetteers (dict): By label, a file with a mention on each line.
    gazetteer_share (float): Share of the mentions that come from the gazetteer, for labels with a gazetteer.
    seed (int): Seed of the random numbers.
    """
    checks.expect(checks.is_path(path), _OWNER, "path", path, "the path of training data")
    lists = checks.by_label(_OWNER, "gazetteers", gazetteers, "paths", text=True)
    checks.expect(
        all(map(checks.is_path, lists.values())), _OWNER, "gazetteers", gazetteers, "a table from labels to paths"
    )
    copies = checks.count(_OWNER, "copies", copies, most=1000)
    share = checks.number(_OWNER, "gazetteer_share", gazetteer_share, most=1.0)
    seed = checks.count(_OWNER, "seed", seed, least=0, most=checks.ANY)
    read: list[tuple[Pools, Pools]] = []

    def augment(nlp: Language, example: Example) -> Iterator[Example]:
        yield example
        if not read:
            pools = _read_mentions(Path(path), nlp)
            checks.labels(f"{_OWNER}, gazetteers", lists, pools)
            read.append((pools, {label: _read_gazetteer(Path(name), nlp) for label, name in lists.items()}))
        pools, listed = read[0]
        words = _words(example.reference)
        # The same text draws the same mentions in each epoch and each process
        draws = random.Random(f"{seed} {example.reference.text}")
        if example.reference.spans or not any(word.entity[:1] == "B" for word in words):
            return  # other annotation would have to be moved as well
        for _ in range(copies):
            redrawn = _redrawn(words, pools, listed, share, draws)
            if [word.text for word in redrawn] != [word.text for word in words]:
                yield _example(nlp, example, redrawn)

    return augment


def _redrawn(words: list[Word], pools: Pools, listed: Pools, share: float, draws: random.Random) -> list[Word]:
    """Replace the mentions in the words of a text by mentions of the same label, drawn by chance.

    pools (Pools): The mentions of the training data.
    listed (Pools): The entries of gazetteers, which are drawn with the probability `share` for the labels that have some.
    """
    redrawn: list[Word] = []
    for label, mention in _parts(words):
        pool = listed[label] if label in listed and draws.random() < share else pools.get(label)
        if label and pool:
            first = mention[0]
            last = mention[-1]
            # Tags and sentence starts of the other text do not belong here
            mention = [word._replace(entity=f"I-{label}", tag="", sent_start=-1) for word in draws.choice(pool)]
            mention[0] = mention[0]._replace(entity=f"B-{label}", sent_start=first.sent_start)
            mention[-1] = mention[-1]._replace(space=last.space)
        redrawn += mention
    return redrawn


def _parts(words: list[Word]) -> Iterator[tuple[str, list[Word]]]:
    """Cut a text into mentions, each with its label, and the words between mentions, each with the label ""."""
    numbers = []
    number = 0
    # A part ends where a tag does not continue the one before
    for word in words:
        number += word.entity[:1] != "I"
        numbers.append(number)
    for _, part in groupby(zip(words, numbers), key=lambda pair: pair[1]):
        mention = [word for word, _ in part]
        yield mention[0].entity[2:], mention


def _words(doc: Doc) -> list[Word]:
    return [Word(t.text, bool(t.whitespace_), _entity(t), t.tag_, _SENT_START[t.is_sent_start]) for t in doc]


def _entity(token: Token) -> str:
    if token.ent_type_:
        return f"{token.ent_iob_}-{token.ent_type_}"
    return "O" if token.ent_iob_ else ""  # blocked tokens have "B"


def _example(nlp: Language, like: Example, words: list[Word]) -> Example:
    """An Example with other words, tokenized like another Example."""
    texts, spaces, entities, tags, sent_starts = map(list, zip(*words))
    sent_starts = sent_starts if like.reference.has_annotation("SENT_START") else None
    ents: list = [entity or None for entity in entities]  # None where annotation is missing
    gold = Doc(nlp.vocab, words=texts, spaces=spaces, ents=ents, tags=tags, sent_starts=sent_starts)
    for key, value in like.reference.user_data.items():
        if isinstance(key, tuple) and key[2] is None:  # extensions of the Doc, not of its tokens, which are others now
            gold.user_data[key] = value
    if same_words(like.predicted, like.reference):
        return Example(Doc(nlp.vocab, words=texts, spaces=spaces), gold)
    return Example(nlp.make_doc(gold.text), gold)


def _read_mentions(path: Path, nlp: Language) -> Pools:
    """RAISES (ValueError): CRF701 if the data can't be read, CRF708 without mentions."""
    pools: Pools = {}
    try:
        for example in Corpus(path)(nlp):
            for label, mention in _parts(_words(example.reference)):
                if label:
                    pools.setdefault(label, []).append(mention)
    except (OSError, ValueError) as error:
        raise ValueError(Errors.CRF701.format(place=f"{_OWNER}: {path}", reason=str(error).rstrip("."))) from error
    if not pools:
        raise ValueError(Errors.CRF708.format(path=path))
    return pools


def _read_gazetteer(path: Path, nlp: Language) -> list[list[Word]]:
    """RAISES (ValueError): CRF701 if the file can't be read or has no mention."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeError) as error:
        raise ValueError(Errors.CRF701.format(place=f"{_OWNER}: {path}", reason=error)) from error
    docs = [nlp.make_doc(line.strip()) for line in lines if line.strip()]
    if not docs:
        raise ValueError(Errors.CRF701.format(place=f"{_OWNER}: {path}", reason="it has no mentions"))
    mentions = []
    for doc in docs:
        mentions.append([Word(token.text, bool(token.whitespace_)) for token in doc])
    return mentions
