"""Words and sentences of raw text beside other programs: ``python -m tests.benchmarks.words``

F1 counts words, or sentences, whose first and last characters are both right; white space at their edges is left out.
Portuguese law is cross-validated over all its texts, other sets have a split for tests. Programs that learn do so from the same
texts, spaCy's ``senter`` for the CPU time that ours takes; Punkt learns from the raw texts of the training split. Seconds, and
characters a second, are CPU time, memory is the peak of the process; compiling kernels does not count. The time of CRFsuite has
that of making its features in Python; "CRFsuite alone" leaves it out. Programs that are not installed say so: ``pip install nltk
pysbd pythainlp pyvi spacy-pkuseg``. Vaporetto's wheel has no model, and can't learn one. The Vietnamese words of spaCy are those
of pyvi, which may have learned from the texts of the test. UDPipe's figures are those of its authors
(https://ufal.mff.cuni.cz/udpipe/2/models).
"""

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional

import pycrfsuite
import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import fix_random_seed, minibatch

from spacy_crf.optimizers.lbfgs import LBFGS

from .data import data_folder
from .measure import in_own_process, show

Spans = list[tuple[int, int]]  # first character of each, and the one behind its last
_BLANK = " \t\r\n\f\v\u00a0\u2028\u2029\u200b\u3000"


class Text(NamedTuple):
    text: str
    words: Optional[Spans]  # None where they are not annotated
    sentences: Optional[Spans]


class Found(NamedTuple):
    """What a program says of a text; None for what it does not look for."""

    words: Optional[Spans] = None
    sentences: Optional[Spans] = None


class Learned(NamedTuple):
    """A program that has learned, or that has rules."""

    find: Callable[[list[str]], Iterable[Any]]  # what it makes of texts, in its own form: the part whose time counts
    read: Callable[[Any], Found]  # what that says of a text
    prepare: Callable[[str], Any] = str  # what is done to each text before the time counts


class TextSet(NamedTuple):
    """A data set.

    words (str), sentences (str): Keys of the files; "" for none.
    folds (int): Parts into which all texts are cut for cross-validation; 0 for the split of the files.
    rivals (tuple): Programs beside those of spaCy and ours.
    published (tuple): Rows of figures from papers: name, F1 of words and of sentences.
    language_rules (bool): Whether our tokenizer learns from the tokens of spaCy's rules.
    l2 (float), max_iterations (Optional[int]): Settings of its training, chosen on the split for development.
    """

    lang: str
    words: str
    sentences: str
    folds: int = 0
    rivals: tuple[str, ...] = ()
    published: tuple[tuple[str, float, Optional[float]], ...] = ()
    language_rules: bool = False
    l2: float = 0.1
    max_iterations: Optional[int] = None


SETS = {
    "multilegal_sbd_pt": TextSet("pt", "", "spans", folds=5, rivals=("Punkt", "PySBD")),
    "multilegal_sbd_fr": TextSet("fr", "", "spans", rivals=("Punkt", "PySBD")),
    "ewt_raw": TextSet(
        "en",
        "tokens",
        "sents",
        rivals=("Punkt", "PySBD"),
        published=(("UDPipe", 99.09, 87.82),),
        language_rules=True,
        l2=0.03,
        max_iterations=50,
    ),
    "ud_vi_vtb_words": TextSet(
        "vi", "words", "", rivals=("CRFsuite", "CRFsuite alone"), published=(("UDPipe 2", 86.06, None),)
    ),
    "wisesight1000_words": TextSet("th", "words", "", rivals=("CRFsuite", "pkuseg", "newmm")),
}
SENTER = "crf_senter"  # learns first, since spaCy's learns as long
OURS = (SENTER, "Tokenizer")


class Row(NamedTuple):
    words: Optional[float]  # F1, percent
    sentences: Optional[float]
    training: float  # seconds of CPU
    speed: float  # characters a second


def main(
    sets: Annotated[str, typer.Option(help="Names of data sets, between commas.")] = ",".join(SETS),
    programs: Annotated[str, typer.Option(help="Only these programs, between commas; all that fit by default.")] = "",
    seed: Annotated[int, typer.Option(help="Of the folds, and of spaCy's senter.")] = 0,
) -> None:
    """F1, speed, and the cost of training."""
    for name in sets.split(","):
        rows = []
        seconds = None  # of our training, which spaCy's senter gets too
        for program in programs_for(name):
            if programs and program not in programs.split(","):
                continue
            if not is_installed(program, SETS[name].lang):
                rows.append([program, "not installed", *[None] * 4])
                continue
            result, _, peak = in_own_process(measure, name, program, seed, seconds)
            if program == SENTER:
                seconds = result.training
            rows.append([program, result.words, result.sentences, result.speed, result.training, peak])
        rows += [
            [f"{who} (published)", words, sentences, *[None] * 3] for who, words, sentences in SETS[name].published
        ]
        show(name, ["program", "words F1", "sentences F1", "characters/s", "training, s", "peak, MB"], rows)


def programs_for(name: str) -> list[str]:
    """The programs that are compared on a data set."""
    data = SETS[name]
    of_words = ["spaCy"] if data.words else []
    of_sentences = [SENTER, "senter", "sentencizer"] if data.sentences else []
    return [*of_words, *of_sentences, *data.rivals, "Tokenizer"]


def is_installed(program: str, lang: str) -> bool:
    """Whether the package of a program is there; spaCy takes another one for the words of some languages."""
    packages = {"Punkt": "nltk", "PySBD": "pysbd", "newmm": "pythainlp", "pkuseg": "spacy_pkuseg"}
    if program == "spaCy":
        packages[program] = {"th": "pythainlp", "vi": "pyvi"}.get(lang, "spacy")
    return find_spec(packages.get(program, "spacy")) is not None


def measure(name: str, program: str, seed: int, seconds: Optional[float]) -> Row:
    """Let a program learn, and judge what it finds in texts that it has not seen.

    seconds (Optional[float]): How long it learns, for programs that could learn for ever.
    """
    data = SETS[name]
    learn = PROGRAMS[program]
    counts: Counter[str] = Counter()
    training = finding = 0.0
    n_characters = 0
    parts = list(splits(name, data, seed))
    if program in OURS:
        some = parts[0].train[:4]
        list(learn(data, some, None).find([text.text for text in some]))  # compiles, or loads what was compiled
    for part in parts:
        start = time.process_time()
        find, read_found, prepare = learn(data, part.train, None if seconds is None else seconds / len(parts))
        training += time.process_time() - start
        texts = [prepare(text.text) for text in part.test]
        list(find(texts[:4]))
        start = time.process_time()
        found = list(find(texts))
        finding += time.process_time() - start
        n_characters += sum(len(text.text) for text in part.test)
        for text, of_text in zip(part.test, found):
            count(counts, text, read_found(of_text))
    return Row(f1(counts, "words"), f1(counts, "sentences"), training, n_characters / finding)


class Part(NamedTuple):
    train: list[Text]
    test: list[Text]


def splits(name: str, data: TextSet, seed: int) -> Iterator[Part]:
    """The parts of a data set: those of its files, or of cross-validation over all texts."""
    texts = {split: list(read(name, data, split)) for split in ("train", "dev", "test")}
    if not data.folds:
        yield Part(texts["train"], texts["test"])
        return
    every = [text for of_split in texts.values() for text in of_split]
    random.Random(seed).shuffle(every)
    for n in range(data.folds):
        test = every[n :: data.folds]
        yield Part([text for m, text in enumerate(every) if m % data.folds != n], test)


def read(name: str, data: TextSet, split: str) -> Iterator[Text]:
    """The texts of one file."""
    with (data_folder() / name / f"{split}.jsonl").open(encoding="utf8") as lines:
        for fields in map(json.loads, lines):
            words, sentences = (
                [(span["start"], span["end"]) if isinstance(span, dict) else tuple(span) for span in fields[key]]
                if key
                else None
                for key in (data.words, data.sentences)
            )
            yield Text(fields["text"], words, sentences)


def count(counts: "Counter[str]", text: Text, found: Found) -> None:
    """Add the right, found and annotated spans of a text to `counts`."""
    for kind, gold, spans in (("words", text.words, found.words), ("sentences", text.sentences, found.sentences)):
        if gold is not None and spans is not None:
            gold_set = set(trimmed(text.text, gold))
            found_set = set(trimmed(text.text, spans))
            counts.update({f"{kind} right": len(gold_set & found_set), kind: len(gold_set) + len(found_set)})


def f1(counts: "Counter[str]", kind: str) -> Optional[float]:
    """Percent; None if nothing of the kind was counted."""
    return 200.0 * counts[f"{kind} right"] / counts[kind] if counts[kind] else None


def trimmed(text: str, spans: Spans) -> Spans:
    """Spans without white space at their edges; those of white space alone are left out."""
    edges = []
    for start, end in spans:
        words = text[start:end]
        begin = start + len(words) - len(words.lstrip(_BLANK))
        stop = end - len(words) + len(words.rstrip(_BLANK))
        if begin < stop:
            edges.append((begin, stop))
    return edges


def pieces(texts: Iterable[str]) -> Spans:
    """Spans of the pieces of a text, which follow each other."""
    spans = []
    start = 0
    for piece in texts:
        spans.append((start, start + len(piece)))
        start += len(piece)
    return spans


# --------------------------------------------------------------------------------------------------------- spaCy, and ours


def words_of(doc: Doc) -> Found:
    """The words of a Doc."""
    return Found([(token.idx, token.idx + len(token)) for token in doc])


def of_doc(doc: Doc) -> Found:
    """The words and the sentences of a Doc."""
    sentences = [(sent.start_char, sent.end_char) for sent in doc.sents] if len(doc) else []
    return Found(words_of(doc).words, sentences)


def with_sentences(nlp: Language, text: Text) -> Doc:
    """A Doc of spaCy's words, with the annotated sentences."""
    doc = nlp.make_doc(text.text)
    starts = {start for start, _ in text.sentences or ()}
    for token in doc:
        token.is_sent_start = token.i == 0 or token.idx in starts
    return doc


def with_words(nlp: Language, text: Text) -> Doc:
    """A Doc of the annotated words, with white space as spaCy has it, and of the annotated sentences."""
    words: list[str] = []
    spaces: list[bool] = []
    places: list[int] = []
    end = 0
    for start, stop in [*(text.words or ()), (len(text.text), len(text.text))]:
        blank = text.text[end:start]
        if blank.startswith(" ") and words:
            spaces[-1] = True
            blank = blank[1:]
        for piece, place in ((blank, start - len(blank)), (text.text[start:stop], start)):
            if piece:
                words.append(piece)
                spaces.append(False)
                places.append(place)
        end = stop
    starts = {start for start, _ in text.sentences or ()}
    sent_starts: Any = [n == 0 or place in starts for n, place in enumerate(places)]
    return Doc(nlp.vocab, words=words, spaces=spaces, sent_starts=sent_starts if text.sentences is not None else None)


def spacy_rules(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    nlp = spacy.blank(data.lang)
    return Learned(nlp.tokenizer.pipe, words_of)


def sentencizer(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    nlp = spacy.blank(data.lang)
    nlp.add_pipe("sentencizer")
    return Learned(nlp.pipe, of_doc)


def senter(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    """spaCy's, which learns from batches of texts until the time is over."""
    fix_random_seed(0)
    nlp = spacy.blank(data.lang)
    nlp.add_pipe("senter")
    examples = [Example(nlp.make_doc(text.text), with_sentences(nlp, text)) for text in train]
    optimizer = nlp.initialize(lambda: examples)
    until = time.process_time() + (60.0 if seconds is None else seconds)
    rng = random.Random(0)
    while time.process_time() < until:
        rng.shuffle(examples)
        for batch in minibatch(examples, 4):
            nlp.update(batch, sgd=optimizer)
    return Learned(nlp.pipe, of_doc)


def crf_senter(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    """Ours on spaCy's words, with the features of `configs/crf_senter.cfg`, trained to the optimum."""
    nlp = spacy.blank(data.lang)
    nlp.add_pipe("crf_senter")
    optimizer = LBFGS(l2=0.1)
    examples = [Example(nlp.make_doc(text.text), with_sentences(nlp, text)) for text in train]
    nlp.initialize(lambda: examples, sgd=optimizer)
    while optimizer.stop_reason("crf_senter") is None:
        nlp.update(examples, sgd=optimizer)
    return Learned(nlp.pipe, of_doc)


def tokenizer(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    """Ours on characters; where words are not annotated, it learns those of spaCy."""
    settings = {
        "@tokenizers": "spacy_crf.Tokenizer.v1",
        "sentences": bool(data.sentences),
        "language_rules": data.language_rules,
    }
    rules = spacy.blank(data.lang)
    nlp = spacy.blank(data.lang, config={"nlp": {"tokenizer": settings}})
    references = [with_words(nlp, text) if data.words else with_sentences(rules, text) for text in train]
    examples = [Example(doc.copy(), doc) for doc in references if len(doc)]
    nlp.config["initialize"]["tokenizer"] = {"l2": data.l2, "max_iterations": data.max_iterations}
    nlp.initialize(lambda: examples)
    return Learned(nlp.tokenizer.pipe, of_doc if data.sentences else words_of)


# ---------------------------------------------------------------------------------------------------------------- others


def punkt(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer

    trainer = PunktTrainer("\n\n".join(text.text for text in train))
    splitter = PunktSentenceTokenizer(trainer.get_params())
    return Learned(
        lambda texts: [list(splitter.span_tokenize(text)) for text in texts], lambda spans: Found(None, spans)
    )


def pysbd_rules(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    """It has no rules for Portuguese, and gets those for Spanish."""
    import pysbd

    segmenter = pysbd.Segmenter(language={"pt": "es"}.get(data.lang, data.lang), clean=False, char_span=True)
    return Learned(
        lambda texts: map(segmenter.segment, texts),
        lambda spans: Found(None, [(span.start, span.end) for span in spans]),
    )


def newmm(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    from pythainlp import word_tokenize

    return Learned(
        lambda texts: [word_tokenize(text, engine="newmm", keep_whitespace=True) for text in texts],
        lambda words: Found(pieces(words)),
    )


def pkuseg(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    """It learns from lines of words between spaces, in its usual 20 passes."""
    import spacy_pkuseg

    folder = Path(tempfile.mkdtemp())
    lines = [" ".join(text.text[start:end] for start, end in text.words or ()) for text in train]
    (folder / "train").write_text("\n".join(lines), encoding="utf8")
    (folder / "test").write_text("\n".join(lines[:4]), encoding="utf8")
    with redirect_stdout(None):
        spacy_pkuseg.train(str(folder / "train"), str(folder / "test"), str(folder / "model"))
        segmenter = spacy_pkuseg.pkuseg(str(folder / "model"), user_dict=None)

    def find(texts: list[str]) -> list[Spans]:
        found = []
        for text in texts:
            end = 0
            spans = []
            for word in segmenter.cut(text):
                start = text.index(word, end)
                end = start + len(word)
                spans.append((start, end))
            found.append(spans)
        return found

    return Learned(find, Found)


def crfsuite(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    """CRFsuite on the n-grams of a window of two characters on each side, with the settings of a small search."""
    tagger = trained_crfsuite(train, seconds)
    return Learned(lambda texts: [tagger.tag(character_ngrams(text)) for text in texts], read_tags)


def crfsuite_alone(data: TextSet, train: list[Text], seconds: Optional[float]) -> Learned:
    """CRFsuite with the features of `crfsuite`, which are made before the time counts."""
    tagger = trained_crfsuite(train, seconds)
    return Learned(
        lambda texts: map(tagger.tag, texts), read_tags, lambda text: pycrfsuite.ItemSequence(character_ngrams(text))
    )


def trained_crfsuite(train: list[Text], seconds: Optional[float]) -> Any:
    """CRFsuite's tagger."""
    trainer = pycrfsuite.Trainer(verbose=False)
    for text in train:
        firsts = {start for start, _ in text.words or ()}
        firsts.update(end for _, end in text.words or ())  # white space behind a word is no part of it
        tags = ["B" if n in firsts else "I" for n in range(len(text.text))]
        if tags:
            trainer.append(character_ngrams(text.text), tags)
    trainer.set_params({"c1": 0.05, "c2": 0.05, "max_iterations": 200})
    path = str(Path(tempfile.mkdtemp()) / "words.crfsuite")
    trainer.train(path)
    tagger = pycrfsuite.Tagger()
    tagger.open(path)
    return tagger


def read_tags(tags: list[str]) -> Found:
    """The words between the tags B."""
    firsts = [n for n, tag in enumerate(tags) if tag == "B" or n == 0]
    return Found(list(zip(firsts, [*firsts[1:], len(tags)])))


def character_ngrams(text: str) -> list[list[str]]:
    """For each character the n-grams of one to three characters in the window of two on each side."""
    padded = f"\0\0{text}\0\0"
    features = []
    for n in range(len(text)):
        window = padded[n : n + 5]
        ngrams = [
            f"{begin}:{window[begin : begin + size]}" for size in (1, 2, 3) for begin in range(len(window) - size + 1)
        ]
        features.append(ngrams)
    return features


PROGRAMS: dict[str, Callable[[TextSet, list[Text], Optional[float]], Learned]] = {
    "spaCy": spacy_rules,
    "sentencizer": sentencizer,
    "senter": senter,
    SENTER: crf_senter,
    "Tokenizer": tokenizer,
    "Punkt": punkt,
    "PySBD": pysbd_rules,
    "newmm": newmm,
    "CRFsuite": crfsuite,
    "CRFsuite alone": crfsuite_alone,
    "pkuseg": pkuseg,
}

if __name__ == "__main__":
    typer.run(main)
