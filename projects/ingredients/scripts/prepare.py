"""Sentences of ingredient-parser's database to JSON of words and tags. Usage: prepare.py UPSTREAM ASSETS"""

import hashlib
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

upstream, assets = map(Path, sys.argv[1:])


def tags(labels):
    """BIO tags: neighbours with one label are one field, but for B_NAME_TOK, which begins one. PUNC is outside of all fields."""
    found, before = [], ""
    for label in labels:
        name = label.removeprefix("B_").removeprefix("I_")
        goes_on = name == before and not label.startswith("B_")
        found.append("O" if name == "PUNC" else f"{'I' if goes_on else 'B'}-{name}")
        before = name
    return found


database = upstream / "training.sqlite3"
if database.exists():  # otherwise the texts are in the folder of assets already
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT sentence, tokens, labels FROM training ORDER BY id").fetchall()
    texts = {"train": [], "dev": [], "test": []}
    for sentence, tokens, labels in rows:
        labels = json.loads(labels)
        if "OTHER" in labels:  # left out by ingredient-parser too: these sentences could not be annotated
            continue
        part = int(hashlib.md5(sentence.encode()).hexdigest(), 16) % 10  # so that equal sentences are on one side
        split = {0: "test", 1: "dev"}.get(part, "train")
        texts[split].append({"tokens": json.loads(tokens), "ner_tags": tags(labels)})
    for split, items in texts.items():
        lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in items]
        (assets / f"{split}.jsonl").write_text("".join(lines), encoding="utf8")
