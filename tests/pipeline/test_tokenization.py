"""Training data whose tokens the pipeline's tokenizer would not make: what is learned from it must be found in raw texts too, or
a warning says that it will not."""

import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Corpus, Example

from spacy_crf.cli.formats import ReadSettings
from spacy_crf.cli.texts import read_docs
from spacy_crf.optimizers.lbfgs import LBFGS

CHINESE = [
    "王小明|B-PER 住|O 在|O 北京|B-LOC 。|O",
    "昨天|O 李四|B-PER 去|O 了|O 上海|B-LOC 。|O",
    "北京|B-LOC 的|O iPhone|O 15|O 很|O 好|O 。|O",
    "李四|B-PER 在|O 华为|B-ORG 工作|O 。|O",
]


def trained(nlp, examples):
    nlp.add_pipe("crf_ner")
    optimizer = LBFGS(l2=0.01)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    return nlp


def test_words_of_chinese_columns_are_found_in_raw_texts(tmp_path, caplog):
    """Training scored F 100 on words joined by spaces, and nothing was found in texts without."""
    path = tmp_path / "words.txt"
    path.write_text("\n".join(CHINESE), encoding="utf8")
    nlp = spacy.blank("zh")
    docs = read_docs(path, nlp, ReadSettings())
    assert [doc.text for doc in docs][:3:2] == ["王小明住在北京。", "北京的iPhone 15很好。"]
    trained(nlp, list(Corpus(path).make_examples(nlp, docs)))
    assert [(ent.text, ent.label_) for ent in nlp("王小明住在上海。").ents] == [("王小明", "PER"), ("上海", "LOC")]
    assert "CRFW986" not in caplog.text


@pytest.mark.parametrize(
    "lang, words, expected",
    [
        ("en", "Ann works at Foo-Bar now .", "CRFW986: crf_ner: 17% of 6 tokens"),
        ("en", "Ann works at Foo now .", None),
        ("zh", "王小明 住 在 北京 。", "CRFW986: crf_ner: 40% of 5 tokens"),
    ],
)
def test_other_tokens_than_the_tokenizer_makes_are_said(lang, words, expected, caplog):
    nlp = spacy.blank(lang)
    words = words.split()
    doc = Doc(nlp.vocab, words=words, ents=["B-PER", *["O"] * (len(words) - 1)])
    component = nlp.add_pipe("crf_ner")
    component.initialize(
        lambda: [Example(Doc(nlp.vocab, words=words), doc), Example(Doc(nlp.vocab), Doc(nlp.vocab))], nlp=nlp
    )
    found = [message for message in caplog.messages if "CRFW986" in message]
    assert len(found) == (expected is not None)
    assert all(message.startswith(expected) for message in found)
