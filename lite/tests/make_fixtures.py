"""Makes the exports of the tests and what spaCy answers, in the repository: ``python lite/tests/make_fixtures.py``."""

import gzip
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from spacy_crf.migrate.lite import export_lite, write_lite  # noqa: E402
from tests.test_lite import LONG_TEXTS, PIPELINES, of_spacy, small_pipeline  # noqa: E402
from tests.test_lite_tokenizer import trained  # noqa: E402
from tests.util import ner_examples  # noqa: E402

EXPORTS = ("set", "segments", "sentencizer", "characters")  # names of pipelines
TRAINED = "characters"  # has a trained tokenizer, which finds words and sentences


def with_trained_tokenizer():
    nlp = trained(cuts_words=False, sentences=True, language_rules=True)
    examples = ner_examples(nlp)
    crf_ner = nlp.add_pipe("crf_ner")
    crf_ner.initialize(lambda: examples, nlp=nlp)
    optimizer = nlp.create_optimizer()
    for _ in range(8):
        crf_ner.update(examples, sgd=optimizer)
    return nlp


def main() -> None:
    for name in EXPORTS:
        factories = dict(PIPELINES.get(name, []))
        nlp = with_trained_tokenizer() if name == TRAINED else small_pipeline(*factories, **factories)
        for _, pipe in nlp.pipeline:
            getattr(pipe, "cfg", {})["confidence"] = True
        write_lite(export_lite(nlp), HERE / f"{name}.json.gz", "json")
        finds_sentences = name == TRAINED or nlp.pipe_names[0] == "sentencizer"
        answers = []
        for text in LONG_TEXTS:
            doc = nlp(text)
            answers.append({"text": text, "words": [token.text for token in doc], **of_spacy(doc, finds_sentences)})
        # Probabilities are approximations, which know what they expect
        data = json.dumps(answers, ensure_ascii=False, default=lambda number: number.expected)
        (HERE / f"{name}_answers.json.gz").write_bytes(gzip.compress(data.encode("utf8"), mtime=0))


if __name__ == "__main__":
    main()
