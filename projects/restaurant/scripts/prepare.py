"""Lines such as "cheap:B-Price thai:B-Cuisine <=> <NULL>" to JSON of words and tags. Usage: prepare.py UPSTREAM ASSETS"""

import json
import sys
from pathlib import Path

upstream, assets = map(Path, sys.argv[1:])
for name, split in (("train", "train"), ("valid", "dev"), ("test", "test")):
    if not (upstream / name).exists():  # the texts are in the folder of assets already
        continue
    with open(assets / f"{split}.jsonl", "w", encoding="utf8") as file:
        for line in (upstream / name).read_text(encoding="utf8").splitlines():
            pairs = [token.rsplit(":", 1) for token in line.split(" <=> ")[0].split()]
            file.write(json.dumps({"tokens": [w for w, _ in pairs], "ner_tags": [tag for _, tag in pairs]}) + "\n")
