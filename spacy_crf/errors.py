"""All messages of the package, each with a code: 0xx scores and settings, 1xx features, 2xx optimizers, 3xx losses and models,
4xx components, 5xx saving, 6xx constraints, 7xx files and commands, 8xx and 9xx further topics. CRF601 is an error, CRFW601 a
warning. Also the logger of the few lines that every user should read."""

import logging
import re
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Optional

# `spacy train` leaves spaCy's logger at WARNING, but every user should read how many features there are, how far training is and
# why it stopped. A level of its own lets these few lines through to spaCy's handler, and nothing else that is logged at INFO.
announcements = logging.getLogger("spacy.spacy_crf.training")
if announcements.level == logging.NOTSET:
    announcements.setLevel(logging.INFO)


@contextmanager
def quietly() -> Iterator[None]:
    """Switch off the announcements, for what trains many times or trains as a means only."""
    level = announcements.level
    announcements.setLevel(logging.WARNING)
    try:
        yield
    finally:
        announcements.setLevel(level)


def coded(messages: type) -> type:
    """Join the lines of each message and put its code in front, so that ``Errors.CRF001`` starts with ``CRF001: ``."""
    for code, message in [*vars(messages).items()]:
        if code.startswith("CRF"):
            joined = re.sub(r"\n +", " ", message)
            setattr(messages, code, f"{code}: {joined}")
    return messages


def shown(value: object) -> str:
    """A short form of any value, for messages."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"<{type(value).__name__}>"


def known_names(names: Iterable[object], *asked: object) -> str:
    """Known names for messages, with those that were probably meant: a short list of them, or the number of many.

    asked: Names that are not known.
    """
    known = list(map(str, names))
    nearest = [_nearest(str(name), known) for name in asked]
    meant = list(dict.fromkeys(name for name in nearest if name is not None))
    question = f" (did you mean {' or '.join(map(_quoted, meant))}?)" if meant else ""
    if meant and len(known) > _MOST_LISTED:
        return f"{len(known)} names{question}"
    return (", ".join(known) or "none") + question


_MOST_LISTED = 22


def _quoted(name: str) -> str:
    return name if name[:1] in ("'", '"') else repr(name)


def _nearest(asked: str, names: list[str]) -> Optional[str]:
    """The name that differs by few letters, or else the longest one with which the asked name begins; None without either."""
    by_lower = {name.lower(): name for name in names}
    found = get_close_matches(asked.lower(), by_lower, n=1)
    if found:
        return by_lower[found[0]]
    begins = [name for name in names if len(name) > 3 and asked.lower().startswith(name.lower())]
    return max(begins, key=len, default=None)


def counted(n: int, what: str) -> str:
    """A number with its noun: 1 label, 2,000 labels, 3 entities."""
    if n == 1:
        return f"1 {what}"
    plural = f"{what[:-1]}ies" if what.endswith("ty") else f"{what}s"
    return f"{n:,} {plural}"


def in_number(n: int, phrase: str) -> str:
    """A number with a phrase in which words that depend on it have two forms: 2 of "span|spans is|are left out" is
    "2 spans are left out"."""
    return f"{n:,} " + re.sub(r"(\w+)\|(\w+)", r"\1" if n == 1 else r"\2", phrase)


def is_coded(error: Exception) -> bool:
    """Whether an error is one of `Errors`."""
    return isinstance(error, ValueError) and re.match(r"CRF\d{3}: ", str(error)) is not None


def cant_train(trainer: object, what: str, reason: str, fitting: str) -> ValueError:
    """CRF347, for a loss or an optimizer that can't train something, with those that can."""
    return ValueError(Errors.CRF347.format(trainer=type(trainer).__name__, what=what, reason=reason, fitting=fitting))


def function_failed(name: str, where: str, error: Exception) -> ValueError:
    """CRF987, for an error that a user's function raised.

    where (str): The word, span or text for which it was called.
    """
    return ValueError(Errors.CRF987.format(name=name, where=where, reason=f"{type(error).__name__}: {error}"))


def no_component(wanted: str, names: Iterable[str], named: Optional[str] = None) -> ValueError:
    """CRF710, for a pipeline without a component that fits.

    wanted (str): What the component has to be, for the message. names: Components there. named: The only name that fits.
    """
    components = known_names(names, *([named] if named else []))
    condition = f" named '{named}'" if named else ""
    return ValueError(Errors.CRF710.format(wanted=wanted, named=condition, components=components))


def optional_package(name: str, *, what: str, install: str, package: Optional[str] = None) -> Any:
    """Import a module of a package that only some users need.

    what (str): What needs the package, for the message. install (str): What pip installs.
    package (str): Name of the package in the message, if it is not that of the module.
    RAISES (ImportError): CRF781 if the module can't be imported.
    """
    try:
        return import_module(name)
    except ImportError as error:
        message = Errors.CRF781.format(what=what, package=package or name, reason=error, install=install)
        raise ImportError(message) from error


@coded
class Errors:
    CRF001 = "Unknown tag scheme '{scheme}'. Known schemes: {known}."
    CRF010 = """The {what} score of {where} is {value}. Scores must be finite, or -inf for what is forbidden. Look for
        weights that overflowed, and for features that are not numbers."""
    CRF011 = "{what} has shape {shape}, but {expected} was expected. The scores of a batch must agree in their tokens and states."
    CRF012 = "starts = {starts} don't cut {tokens} tokens into sequences: begin with 0, end with {tokens}, never let starts fall."
    CRF013 = "Token {token} has state {state}, but there are {states} states. Use numbers below {states}."
    CRF016 = (
        "The list of spans can't be used: `starts` must lead from 0 to the number of spans, token by token; the lengths of the "
        "spans that begin at a token must rise, from 1 to at most {longest}, and not reach beyond the end of the sequence."
    )
    CRF017 = """numba can't be used ({reason}), so no component of spacy_crf can be made, loaded, trained or applied until
        {versions} is installed, with a NumPy that it supports; what works without it are spacy_crf.lite and ONNX models, with
        files that were exported elsewhere, `python -m spacy info MODEL`, and of `python -m spacy crf` the commands convert,
        data and init-config."""
    CRF020 = "{owner}: {name} = {value} is not possible: it must be {must}."
    CRF030 = """{tokens} tokens with up to {states} possible tags each have {arcs} pairs of neighbouring tags, which do
        not fit into memory. Set `keep` of spacy_crf.HigherOrder.v1, for example to 4.0, to drop improbable tags."""
    CRF034 = "Chains of higher order can't keep rules across texts: {rules}. Drop them or use spacy_crf.LinearChain.v1."
    CRF101 = "Can't read '{part}' in the template '{template}'. Parts are joined by '|'. Known parts: {known}."
    CRF102 = "The ranges of the template '{template}' are not possible: {reason}."
    CRF106 = "The template '{template}' names the {what} '{name}', which is not there. {advice}. {there}: {known}."
    CRF107 = "The feature set has no templates. Give it at least one, such as 'lower[0]'."
    CRF109 = "'{source}' is {value} at token {token} ('{text}') of '{start}...'. Give finite numbers, at most 3.4e38."
    CRF110 = """The feature function '{name}' returned {got} items for a document of {expected} tokens ('{start}...').
        Return a list of strings or of numbers for each token, or an array with a row for each token."""
    CRF111 = """{where}: {value} is not a feature. Give strings, finite numbers (at most 3.4e38), or a dict of
        strings, numbers, booleans, lists of strings, or dicts."""
    CRF987 = """The feature function '{name}' failed for {where}: {reason}. Let the function return features there too, or
        use a tokenizer that makes no such words."""
    CRF899 = "{where}: {value} is not a text. Functions that templates read as text:NAME return one string, or None."
    CRF114 = """The templates keep none of the {seen} features of the training data (min_count = {min_count}). Lower
        min_count, or check that the training documents have the attributes that the templates read."""
    CRF121 = "The template '{template}' joins what can't be joined: {reason}."
    CRF130 = """The extension '{name}' is {value} at token {token} ('{text}') of the document '{start}...', which is not
        a feature. Set a string, boolean or integer for a category, a float for a number, or None."""
    CRF131 = "The feature '{source}' has the value {value}, which is not a valid text: {reason}."
    CRF202 = """{optimizer} needs a CRF component, which the parameter {key} does not belong to. Name the optimizer in
        [components.NAME.optimizer] of the CRF component, and another such as Adam.v1 in [training.optimizer]."""
    CRF203 = """The training objective of '{key}' or its gradient is not finite at the current weights, so {optimizer}
        can't start. Look for rules that forbid an annotated sequence, huge feature values, and broken weights."""
    CRF204 = "The saved state belongs to {saved}, not to {ours}. Load it into an optimizer with the same settings."
    CRF921 = """The saved state of {optimizer} can't be used: {reason}. Take an earlier checkpoint, or train from the start (a
        folder of shards: delete its file 'checkpoint')."""
    CRF206 = """{what} of '{name}' is infinite or not a number {where}. The weights are those from before it. Look for
        features with huge values, or lower the learning rate."""
    CRF210 = """The optimizer {optimizer} can't train the loss {loss} of '{key}'. Losses that fit it: {losses}.
        Optimizers that fit the loss: {optimizers}."""
    CRF213 = """SGD finds no learning rate for '{key}': weights grow without bound with each rate that it tried,
        {tried}. Lower the first rate, calibration_eta = {eta}, for example to 0.1, and set calibration_rate = 2."""
    CRF301 = "The templates of the config differ from those of the saved model. Only on one side: {templates}"
    CRF365 = """Component '{name}': {optimizer} learns from one chain of order 1 after the other, which {model} does not
        consist of. Use an optimizer that evaluates the objective, such as spacy_crf.LBFGS.v1, or one of thinc's."""
    CRF321 = "transitions_from = 'possible' makes {n} n-grams of {m} tags, over {most}. Set 'seen', or a lower order."
    CRF322 = "order = {order} with {tags} tags has too many n-grams; there can be at most {most} tags. Use order = 1."
    CRF327 = "label_parts returned {found} for the tag '{tag}'. Return a list of strings, which may be empty."
    CRF347 = "{trainer} can't train {what}: {reason}. Take {fitting}."
    CRF825 = """Soft labels need a probability from 0 to 1 for each span in doc.spans['{key}'] of '{text}...':
        {problem}. Write one number for each span into attrs['scores'], as spaCy's spancat does."""
    CRF827 = """Component '{name}' can't teach: it labels several attributes ({attributes}), and soft labels are those of one.
        Train a crf_tagger for one attribute as teacher."""
    CRF828 = """Component '{name}' can't learn from soft labels with the scheme IOB1, whose tags depend on the entity
        before. Use BILUO, BIO or IO."""
    CRF833 = '{path} has no texts. Give one text per line, or JSONL with "text".'
    CRF402 = """Component '{name}' was not trained: it has labels, but no weights. Call nlp.initialize() with examples,
        run `spacy train`, or load a trained component from disk."""
    CRF403 = """Component '{name}': the training data has no labels in {where}. Annotate some texts, or list labels in
        [initialize.components.{name}] labels = [...]."""
    CRF404 = """Component '{name}': no text of the training data has labelled spans in doc.spans['{key}']. Keys that the
        texts have: {known}. Set spans_key to one of them, or annotate some texts."""
    CRF406 = """Component '{name}' can't write to the attribute '{attribute}'. Use 'tag', 'pos', 'morph', or a Token
        extension that is set before the pipeline is built. Extensions set: {known}."""
    CRF431 = "Component '{name}' can't learn: no token of the training data is annotated. Annotate some texts."
    CRF407 = """Component '{name}': the training data has no labels of {attribute}. Annotate some texts, list labels such as
        '{attribute}:…' in [initialize.components.{name}], or leave it out of `attribute`."""
    CRF408 = """Component '{name}' has {n} chains, each with a distribution of its own. Ask one of them, such as
        pipe.chain('{label}').distribution(doc)."""
    CRF409 = """Component '{name}': the spans {one} and {other} overlap, which they never do in a labelling of this component.
        Leave one of them out, or use crf_spancat, whose spans may overlap."""
    CRF410 = """Component '{name}' reads its corpus once before training (max_epochs = -1, {optimizer} and
        [initialize.components.{name}.corpus]), but {others} in annotating_components would change its annotation in
        each step. Train and freeze these components first, or set max_epochs = 0 and use the whole corpus as batch."""
    CRF411 = "Component '{name}' has other labels, features or rules than at nlp.initialize(). Add them before nlp.initialize()."
    CRF412 = """Component '{name}' does not know the labels {labels} of this batch: it learns from the corpus that
        nlp.initialize() read. Add the labels before nlp.initialize(), or update the saved model."""
    CRF413 = """Component '{name}' is not saved, since some weights are not finite ('{param}' of {node}). Load the last
        saved model; look for features with huge values, or lower the learning rate."""
    CRF414 = """Component '{name}': no token of the training data is known to begin no sentence. Set token.is_sent_start to
        False there (None says that nothing is known), or give Doc(..., sent_starts=...) a value for each token."""
    CRF423 = "{name}: {path} has no annotation of labels that it could find. Give annotated texts, or use --expected."
    CRF424 = """{name}: {n:,} {units} in {texts:,} texts are too few to promise a {what} of {goal:g} with alpha = {alpha:g}:
        about {needed:,} are the least, with no mistake among them. Annotate more texts, promise less, or raise alpha."""
    CRF425 = """{name}: a recall of {goal:g} can't be promised with alpha = {alpha:g}. With all spans whose probability is at
        least {least:g} it is {reached:.4f} on these texts, and {never:,} of {entities:,} entities are less probable or impossible
        (too long, of an unknown label, or not of whole tokens of one sentence). Promise less, annotate more texts, or
        train with a higher l2, so that probabilities are less extreme."""
    CRF426 = """{name}: a precision of {goal:g} can't be promised with alpha = {alpha:g}. Of the spans whose probability is at
        least {best:g}, a share of {reached:.4f} is annotated in these texts. Promise less, or annotate more texts."""
    CRF427 = "Component '{name}' can't write to doc.spans['{key}'], which '{component}' reads or writes. Set another spans_key."
    CRF440 = """Component '{name}': the gold annotation '{label}' of {place} looks like '{negated}' negated, which
        entities can't be. Put the span into doc.spans and name its key in incorrect_spans_key of the component. If
        '{label}' is a label, add it with add_label or in [initialize.components.{name}] labels."""
    CRF441 = "Component '{name}': {span}, {place}, is annotated and listed as wrong in doc.spans['{key}']. Remove one."
    CRF461 = "Component '{name}': {value} is not a labelling. Give a list of Spans of the Doc, none of them empty."
    CRF462 = "Component '{name}': the span '{span}' is of '{other}...', not of '{doc}...'. Give Spans of the Doc."
    CRF465 = """Component '{name}': the text '{text}...' has several labels: {labels}. Labels in doc.cats exclude each
        other here: set 1.0 for one of them only, or set multilabel = true."""
    CRF466 = """Component '{name}': doc.cats['{label}'] of the text '{text}...' is {value}. Set 1.0 for the label of the
        text, 0.0 for other labels, and leave out labels that are not known."""
    CRF469 = """Component '{name}' needs at least two labels that exclude each other, and has: {labels}. Give texts
        without a label one of their own, such as NOT_SPAM."""
    CRF472 = """The shards in {path} can't be used: {reason}. Set another path in [initialize.components.NAME.shards],
        or delete the folder to make them again."""
    CRF473 = """The component {name} can't be sent to workers, or they can't import its parts: {reason}. Put functions
        of templates (fn:), scorers and extensions into a module that all workers can import."""
    CRF474 = "Component '{name}' can't be trained on shards: {reason}. Leave out [initialize.components.{name}.shards]."
    CRF475 = "{path} could not be written: {reason}. The earlier file is unchanged. Make room, and run the same command again."
    CRF478 = """Component '{name}': [initialize.components.{name}.shards] needs [initialize.components.{name}.corpus],
        the reader of the texts to cut into shards: spaCy passes only the beginning of a streamed corpus (max_epochs =
        -1)."""
    CRF670 = """Component '{name}': start_from = {path} {why}. Name the folder of a saved pipeline with this component,
        or of the saved component; leave start_from out to train from scratch."""
    CRF479 = """Component '{name}' reads Docs, not {value}. Make one with nlp.make_doc(text), or with nlp(text) if
        features read earlier components."""
    CRF480 = """Component '{name}': {model} gives a text {what}, and multilabel is {asked}. Change multilabel, or
        take spacy_crf.MaxEntText.v1, which gives a text one label or several."""
    CRF482 = "Component '{name}': the loss {loss} does not fit several labels of a text: {reason}."
    CRF491 = "The results can't go to {target}, inside the folder to annotate, {source}. Name a folder beside it."
    CRF501 = "{source} is not {what} of spacy_crf: it does not begin with the right header."
    CRF502 = "{source} has format version {version}, not {known}. Install the version that wrote it, or train again."
    CRF504 = "{source} holds a {saved}, not a {component}: the config names another factory than the saved model."
    CRF505 = "{source} does not fit the component '{name}': {reason}. Load it with its own config, or train again."
    CRF507 = """Component '{name}' is a copy that can't train, since its optimizer has a schedule, which can't be copied
        or sent to another process. Train the original, or save the pipeline and load it here."""
    CRF927 = """A process was killed while it replaced the pipeline in {path}: some of its files are new, and others old. Save
        it again, or copy all of its files there again and delete the file .replacing."""
    CRF508 = "{source} is damaged: {reason}. Copy it again, or train again."
    CRF509 = "{what} is {found} in the saved model, where {expected} is needed"
    CRF511 = "unpacked it takes more than {most:,} bytes, and files of spacy_crf never take {times} times their size"
    CRF510 = "{setting} = {saved!r} in the saved model, but {ours!r} in the config"
    CRF601 = "Rule {place} is not a rule: {rule!r}. Write a table with the key 'rule' and the arguments of the rule."
    CRF605 = "Rule {name}: {problem}."
    CRF610 = "{owner}: spaCy's Matcher refuses the pattern: {reason}"
    CRF611 = "Rule '{name}': '{function}' is not registered. Decorate it with @spacy.registry.misc('{function}')."
    CRF907 = """Rule '{name}': the function '{function}' can't be called with a Doc: {reason}. Register the function that takes a
        Doc and returns an array bool[tokens, tags], not one that makes it."""
    CRF908 = "Rule '{name}': the function '{function}' failed for the document '{start}...': {reason}."
    CRF612 = """Rule '{name}': the function '{function}' returned {got} for a document of {tokens} tokens
        ('{start}...'). Return an array bool[tokens, tags], here of shape {expected}."""
    CRF613 = "Rules contradict each other: no text keeps those up to '{name}' ({reason}). Change one, or give a weight."
    CRF616 = """Component '{name}': the rule '{rule}' is about labels of several chains ({labels}), and each chain has rules of
        its own. Write a rule for each, or put labels of crf_spancat into one of `groups`."""
    CRF614 = """Rule '{name}' makes the automaton of all rules larger than {limit} states, and {what} needs the
        automaton. Leave the rule out, count to a smaller number, or raise `max_states` in the constraints (states times
        tags are at most 4,096)."""
    CRF623 = "Rule '{name}' can't search for its pattern in '{doc}...': {reason}"
    CRF960 = """Component '{name}' listens to an encoder ([components.{name}.model.tok2vec] upstream = '{upstream}'),
        but no component before it has this name. Before it are: {before}. Add one, such as factory = 'tok2vec', or give
        the component an encoder of its own."""
    CRF961 = """Component '{name}' listens to an encoder (upstream = '{upstream}') that has no vectors for the text
        '{text}...'. If it is one of [training] frozen_components, {advice}."""
    CRF962 = """Component '{name}' listens to an encoder (upstream = '{upstream}'), but {where} of the text '{text}...'
        is empty. Run the encoder's component before it, or give the component an encoder of its own:
        nlp.replace_listeners(ENCODER, '{name}', ['model.tok2vec'])."""
    CRF964 = """Component '{name}' needs an encoder that does not change (joint.mode = 'frozen'), but the one it listens
        to (upstream = '{upstream}') learns. Name that in [training] frozen_components and annotating_components, or set
        the mode to 'adam'."""
    CRF965 = """Component '{name}': its own optimizer, {optimizer}, never ends, so it can't train the features of a pool
        (joint.mode = 'pool'). Use spacy_crf.LBFGS.v1 in [components.{name}.optimizer], or null to train features by
        [training.optimizer]."""
    CRF966 = "{owner}: {path} can't be used: {reason}."
    CRF779 = "{part}: no text can be annotated, so the cause is probably not the texts. {place}: {error}"
    CRF780 = "{deaths} workers died at the same part of the work, {task}. Check whether it needs more memory."
    CRF781 = "{what} needs {package}, which can't be imported ({reason}): pip install {install}"
    CRF782 = """The Ray cluster {where} can't be used: {reason}. Check with `ray status` that it is running, can be
        reached and has free cores. Without an address (for crf train: --ray local) one is started on this machine."""
    CRF783 = "Workers have {package} {theirs}, but this machine has {ours}. Install the same versions everywhere."
    CRF784 = "{path} can't be annotated: {reason}. Give lines of text, JSONL, or Parquet with a column 'text'."
    CRF786 = """The work in {path} can't be continued: {reason}. Run the same command as before, name another output, or
        delete the folder to start again."""
    CRF788 = "{option} needs {other} too."
    CRF789 = "--sort works for a single file. With --workers, texts are written in the order in which they are read."
    CRF787 = "{place}: can't be annotated: {error}{advice}"
    CRF700 = "{path} has no files to convert. Known suffixes: {known}."
    CRF701 = "{place}: can't be read: {reason}."
    CRF702 = """{place}: two spans overlap, but a token has one entity at most: {first} and {second}. Remove one of them, or
        give --spans-key sc, for crf_spancat."""
    CRF703 = "{place}: has {got} columns, but {expected} were expected."
    CRF704 = """{place}: '{tag}' is not an entity tag like those in the rest of the file. Known: B-LABEL, I-LABEL, O,
        and - for missing annotation; L- and U- in BILUO, E- and S- in BIOES."""
    CRF706 = "{path} can't be read or written: {reason}."
    CRF707 = """{place}: '{key}' holds annotation ({value}) that can't be read and would be lost. Annotation is read
        from {known}. Write it there, or skip '{key}' with --ignore {key}."""
    CRF708 = "{path} has no annotated texts. Give texts with annotation."
    CRF709 = '{place}: this is JSON, but not an object with a string under "text". Give one text per line, or JSONL with "text".'
    CRF710 = "There is no component{named} {wanted}. Components: {components}."
    CRF711 = """The pipeline has no component{named}, only a tokenizer that learns: `crf show`, `crf demo` and `crf evaluate` show
        what it finds, `crf explain` says why, and `crf fit` chooses its settings."""
    CRF712 = "Component '{name}': no examples were read. {reason}."
    CRF713 = "{one} and {other} would both be written to {target}. Rename one, or convert them separately."
    CRF716 = "{source} is a folder, and {target} is a file. Name a folder for the results, or one of the files."
    CRF714 = "{place}: {keys} hold annotation, and only one of them can be read. Remove one, or skip it with --ignore {last}."
    CRF715 = "The pipeline {model} can't be loaded: {reason}\n{advice}"
    CRF717 = (
        "{name} is of the package {package}, and what is installed does not have it. Install it: pip install {package}"
    )
    CRF718 = "There are no texts. Give them as arguments, or as lines of the standard input."
    CRF730 = "{path} is an input, and the output would overwrite it. Give the output another name."
    CRF731 = "Give only options of this command, and overrides of the config such as --paths.train: {reason}"
    CRF986 = "The tokenizer of the language '{lang}' can't be made: {reason}"
    CRF733 = "A text, a name or a file is not Unicode: {reason}. Give it in UTF-8."
    CRF736 = """Process {process} works in {path} already. Wait until it ends, or name another folder (for a training on
        shards: path in [initialize.components.NAME.shards])."""
    CRF737 = "{path} can't be locked: {reason}. Set path in [initialize.components.NAME.shards] to another file system."
    CRF738 = """A worker ended, with exit code {code}, before it began; its own message stands above. Workers import the
        script that starts them, so the code of the script belongs under: if __name__ == '__main__':"""
    CRF739 = """Workers of the cluster can't import their functions: {reason}. Install spacy_crf, spaCy and what the
        pipeline needs on every machine, in the same versions."""
    CRF740 = """{place}: some tags look like letter and label ({tags}), but not all of the file do so. Spell them B-LABEL and
        I-LABEL; or add --scheme BIO if all are such tags, --scheme bare if they are labels without a letter."""
    CRF741 = """{place}: the first column numbers the tokens of each sentence. Name the column of words: --word-column 2
        (or --word-column 1 if the numbers are the words)."""
    CRF742 = """{place}: '{key}=' in the last column of CoNLL-U holds annotation that would be lost. Entity tags are read
        from NER=B-PER. Name the key with --label-column {key} if it holds such tags; otherwise skip it with --ignore {key}."""
    CRF744 = """{place}: '{tag}' names no kind of entity. Write tags with a label ({tag}-LABEL), also where all entities are of
        one kind."""
    CRF747 = """{path} is read as {title}, where {option} means nothing. Leave it out, or name another format with --format."""
    CRF748 = """{place}: '{tag}' is a bracket, as CoNLL-2012 writes spans, and is not read. Name another column with
        --label-column, or write the spans as tags: B-PERSON, I-PERSON, O."""
    CRF749 = """{path} is a pipe or a device, and files are read several times. Write its contents to a file; `spacy crf annotate`
        also reads the standard input, named -."""
    CRF745 = """The options given ({given}) do not choose one config. Give --component NAME, optionally with --preset
        NAME and --optimize NAME; --for TEXTS alone, to have it chosen by annotated texts; or --file NAME alone, for a
        config of the package."""
    CRF746 = (
        "Components {components} give probabilities, and --output draws one of them. Name it with --component NAME."
    )
    CRF750 = "{path} exists already: {advice}."
    CRF751 = "{component} has no preset '{preset}'. It has: {known}."
    CRF752 = "{component}, {preset}: no features of tokens read clusters, vectors or gazetteers. Use the preset fast."
    CRF753 = """The preset words needs something that is known of words: --lookups with the folder of `spacy crf lookups`,
        --clusters, --vectors or --gazetteers; or pip install 'spacy-crf[words]'."""
    CRF754 = """Nothing is installed that knows words of '{lang}': pip install 'spacy-crf[words]' for clusters and
        gazetteers, or make clusters of your own texts with `spacy crf clusters`."""
    CRF768 = "--optimize accuracy changes how labels of tokens are decided, and {component} has none. Leave it out."
    CRF770 = "{folds} folds of {texts} are not possible: give at least two folds, and no more folds than texts."
    CRF771 = """Component '{name}': `fit` trains sparse features by spacy_crf.LBFGS.v1, and compares F1 or accuracies. Name that
        optimizer; for others, and for components that give numbers, use `crf tune` and `spacy train`."""
    CRF772 = """Component '{name}' needs training too, and `fit` trains components of spacy_crf alone. Train it first,
        then source and freeze it, or leave it out of the pipeline."""
    CRF773 = """{path} has nothing to learn: no spans, no tags of tokens and no labels of texts. `spacy crf data` shows how it is
        read; annotate it, or convert it with the options of `spacy crf convert` first. Words and sentences alone are
        learned with --config FILE, which `spacy crf init-config --file crf_tokenizer` writes."""
    CRF774 = "The words of {path} do not show their language: {reason}. Name it: --lang en, or --lang xx for any."
    CRF722 = "[training.score_weights] weighs no score of '{name}', so there is nothing to tune. Its scores: {scores}."
    CRF865 = """{path}: none of {documents} texts, read as {format}, is annotated, though there are keys or columns for
        annotation; {lost} spans did not align with the tokens (if the tool counted UTF-16 units, or CR LF as one: --offsets
        utf16 or crlf). Say where annotation is with --format, --label-column or --tag-column, or add --without-spans if there
        is none."""
    CRF866 = (
        "{place}: '{tag}' can't follow '{before}' in the scheme {scheme}. Correct it, or name another with --scheme."
    )
    CRF867 = """{place}: '{tag}' has no prefix such as B-, and no token of the file is 'O', so these may not be entity
        tags. If they are, add --scheme bare; otherwise name the column of entity tags with --label-column or, in a file without
        entities, the last column with --tag-column."""
    CRF879 = "{error} Only `spacy crf convert` has these options: convert the file to .spacy, and give the result."
    CRF868 = "--{option} {value}: there is no such column or attribute. Known: {known}."
    CRF869 = """{place}: a table needs a header with columns of words and tags, or of texts and labels. The columns are
        {names}. Name the right ones with --word-column and --label-column (or --tag-column)."""
    CRF870 = "{place}: tag or label {tag} is a number, but {n} names are known. Name all: --tag-names O,B-PER,I-PER …"
    CRF871 = """{place}: the words of a span are given as {words}, but the text has {found} at its offsets. Offsets
        count characters (not bytes) from 0{advice}."""
    CRF755 = """{path}: {n:,} spans can't be read:{listed}\n{advice}"""
    CRF756 = "{path} is {title}, which can't be read. {advice}."
    CRF757 = """{path} looks like running text, which has no annotation: its first line has {first} words, and line {n} has
        {other}. Annotate such texts with `spacy crf annotate` or a tool. If they are columns, a token is on each line, and
        --format conll names the wrong line. If spaces part the words of a text without spaces: --format spaced."""
    CRF872 = "{path} can't be read in '{encoding}', which is no text encoding. Name one such as utf-8 or cp1252."
    CRF873 = """{place}: '{key}' holds annotation ({value}), which would be overwritten. Remove the key to annotate the
        text again; `spacy crf convert` makes training data from annotated texts."""
    CRF883 = """The format 'conll' has one tag for each token, and spans in doc.spans['{key}'] may overlap. Write them as
        spans or spacy."""
    CRF874 = """The format '{format}' has no place for what the pipeline finds. Write tags of tokens as {known}, labels of
        texts as spans or spacy, and numbers as spacy."""
    CRF876 = "[{corpus}] has no path, so a learning curve can't take parts of its texts. Use a reader such as spacy.Corpus.v1."
    CRF878 = "{place}: the text has {n:,} characters, and a pipeline takes {most:,} at most. Split it by paragraphs."
    CRF880 = """{place}: {value} can't be read as labels of a text. Give a string, a list of strings, or a table with 1
        for each label of the text and 0 for other labels."""
    CRF726 = '[{section}] {key} = {value} is not a registered name. Write it in quotes, as "spacy_crf.LinearChain.v1".'
    CRF834 = """Component '{name}' can't estimate decisions without a training text: {reason}. `effect` works for linear
        chains, segments and MaxEntText on sparse features, trained with l2 > 0 and a loss such as LogLikelihood.v1."""
    CRF838 = "Component '{name}' can't explain {what}: {reason}."
    CRF840 = "Component '{name}' can't split a decision up among its training texts: {reason}."
    CRF810 = "{where}, but there is no first stage. Add a block [components.NAME.second_stage], or leave these templates out."
    CRF811 = "Component '{name}' can't use its second_stage: {reason}; or set second_stage = null."
    CRF812 = """The features of component '{name}' read outer, the label of the outermost of spans that nest, but it has no inner
        spans. Leave these templates out, or take the component crf_spancat with nested = true."""
    CRF815 = """Component '{name}' has a second_stage, whose first stage is trained before {others} in
        annotating_components are trained. Train and freeze these components first, or set second_stage = null."""
    CRF800 = """The template '{template}' reads word vectors, and there are none. Name a pipeline with vectors in
        [initialize] vectors or [initialize.components.NAME] vectors. If a model was saved without its vectors, train it
        again."""
    CRF803 = "The vectors of {source} can't be used as features: {reason}."
    CRF851 = "This CRF was not trained: call fit(X, y), or read a saved one with CRF.load(path)."
    CRF853 = """X and y can't be used: {problem}. X has a list of tokens for each sequence, y a list of labels, which are
        strings that are not empty."""
    CRF925 = """{owner}: a config can't keep {name} in this form: when it is saved, labels are lost that are empty, begin with
        one of # ; [ @ or a blank, end with a blank, or contain = or : (or a $ in a list of pairs). Write {name} = {pairs}"""
    CRF926 = """{owner}: {name} has the line {line!r}, where a number should follow the first = or :, at which the config parser
        ends the label. Labels with these characters are written in a list of pairs: {name} = [["LABEL", 0.5], ["*", 0.3]]"""
    CRF846 = "{owner}: no label is named {labels}. Labels: {known}."
    CRF847 = "--span {given!r} is not a span. Write 3:5 or 3:5:LABEL for tokens 3 and 4 of these {n}: {words}."
    CRF890 = """'{name}' can't be trained in {folds} folds on {texts} texts. There must be 2 folds or more, at least as
        many texts, and a component without an encoder."""
    CRF854 = "{source} can't be read as {kind}: {place}: {reason}. Copy it again, or name its program with --from."
    CRF855 = """{source} is a pickle, which runs code when it is read, so it is not read. Where the model was trained,
        write it to a file (for sklearn-crfsuite: shutil.copy(crf.modelfile.name, 'model.crfsuite')), and import that
        file."""
    CRF856 = "The template '{template}' can't be followed: {reason}."
    CRF895 = """The template '{template}' reads farther than padding has texts: {before} before the sequence, {behind}
        behind it. Give a text for each position that templates reach."""
    CRF858 = "Component '{name}' has {what}, which a CRFsuite model can't hold. {how}, and export that."
    CRF791 = "Component '{name}' has {what}, which {form} can't hold. {how}, and export that."
    CRF796 = "{path} is not an empty folder, and nothing in it is replaced. Name another folder."
    CRF797 = (
        "{path} has no annotated texts: name files in it train, test and perhaps dev (train.conll, train.jsonl ...)."
    )
    CRF798 = "{path} (--meta) is not a JSON object with some of the keys {known}."
    CRF859 = """{path} can't be imported as a function: {reason}. Give package.module:function. The one of --features
        takes a Doc (with --columns, a list of words) and returns a list of feature dicts, the one of --word-features
        takes a word and returns its feature dict."""
    CRF861 = """A CRFsuite model has the names of its features, but not the function that makes them. Name it with
        --features package.module:function, and add --columns orth if it takes a list of words (orth,tag for tuples of
        word and tag) instead of a Doc."""
    CRF896 = "--word-features: the function fails on each of {n} words, such as: {reason}. Give one that takes a single word."
    CRF897 = """{path} does not make {n} of the {total} features of the model, neither of a word nor of one before it
        (previous:…, -1:…) or behind it (next:…, +1:…): {names}. If some stand for the first and the last word, name
        these two with --edges; a function of sentences that makes the others goes to --features."""
    CRF898 = """--as entities: the labels {labels} are tags of a scheme. An imported entity is a run of tokens with one
        label, and crf_ner forbids sequences of tags that the other program allows. Import the model without --as."""
    CRF864 = """The model reads {needed} columns, and --columns names {given}. Name an attribute of tokens for each
        column of its training data except the last (the labels), such as --columns orth,tag."""
    CRF930 = """Component '{name}' learns batch by batch, but [training.batcher] is spacy_crf.clock.v1, which gives
        texts only once. Use @batchers = "spacy.batch_by_words.v1" and max_epochs = 0, or an optimizer that uses the
        whole corpus in each step, such as spacy_crf.LBFGS.v1."""
    CRF931 = "Component '{name}' can't be trained with the scheme '{scheme}'. --schemes takes {known}, for crf_ner."
    CRF940 = """The template '{template}' reads the clusters {attribute}: {known}. Set {setting} = "clusters.bin", which
        `spacy crf clusters` makes, or "spacy-lookups-data", or "vectors". If a model was saved without its clusters, train
        it again."""
    CRF941 = """The template '{template}' reads the first bits of a cluster, but the clusters of its table are no tree of
        bits. Write {plain} in place of {attribute}."""
    CRF943 = """{source} can't be used as clusters of words: {reason}. Give a file of `spacy crf clusters`, or lines with a
        word, its cluster and perhaps a weight, or with the bits of a cluster, a word and its count, between tabs."""
    CRF944 = """Component '{name}': no template reads the {what}. Add a template such as '{template}', or leave out
        [initialize.components.{name}] {setting}."""
    CRF945 = """{source}: line {line} puts the word {word} in the cluster {cluster}, and line {other_line} in {other}. Leave
        one of the lines out, or give them different weights: the larger one counts."""
    CRF946 = "There are no packaged clusters of the language '{lang}': {reason}. Make some with `spacy crf clusters`."
    CRF947 = """Component '{name}': the clusters{table} know {found} of {n} words of the training data ({share:.1%}), which
        suggests clusters of another language or with another spelling. Give clusters of texts like yours, which
        `spacy crf clusters` makes, or leave out {setting} and the templates that read it."""
    CRF948 = "Can't make {what} from {source}: {reason}. Give more text, fewer clusters, or a lower --min-count."
    CRF950 = """Component '{name}': its weights were learned with other {what}. Give the same {what} or none in
        {settings}, or leave out start_from to begin anew."""
    CRF951 = "The checkpoint {path} can't be used: {reason} Delete it to begin anew."
    CRF970 = "{what} {value} is refused: the demo answers http://{known} only."
    CRF971 = "There is nothing at {path}."
    CRF972 = "{path} can't be asked by {method}. Pages are read by GET, and questions asked by POST."
    CRF973 = "The request can't be read: {reason}. Send a JSON object by POST."
    CRF974 = "The request has {n:,} bytes, and may have {most:,}. Send a part of the text."
    CRF914 = """The text has {n:,} characters, and may have {most:,} here. The commands `show`, `annotate` and `explain` take
        longer ones."""
    CRF975 = "The demo was not told where to save. Start it with --output FILE.jsonl."
    CRF976 = "'{key}' must be {must}, not {value}."
    CRF977 = "--output writes the annotation of one component, and there are {names}. Name one with --component."
    CRF978 = (
        "--output can't write the annotation of component '{name}': JSONL has no place for {attribute}, only for tag."
    )
    CRF979 = "The pipeline can't answer: {reason}."
    CRF981 = """{path} is {reason}, so nothing is written there, and nothing of it is used. Look at who has made it; then delete
        it, or name another folder."""
    CRF982 = """Texts of the project '{name}' can't be fetched: {missing} ({reason}). Run the command again where there is a
        network, or give a folder with annotated texts, files named train, test and perhaps dev: --assets FOLDER."""
    CRF983 = """{path} is {reason}, so it is not copied. Give --assets a folder with annotated texts: files, or folders of
        files, named train, test and perhaps dev."""
    CRF980 = "Port {port} can't be used: {reason}. Give another one with --port, or 0 for any free one."
    CRF952 = """For clusters of Brown or Clark give texts; for k-means give --from-vectors. Given: texts {files}, vectors
        {vectors}."""

    CRF990 = """The text {text} has half of a surrogate pair at character {place}, which is no character, and which spaCy can't
        keep. Decode the file again with its encoding, or with errors="replace"."""
    CRF991 = """The tokenizer {name} was never trained, so it can't cut texts. Train it with `spacy train` or
        nlp.initialize(get_examples), where Example(doc.copy(), doc) makes an example of a Doc with the right tokens."""
    CRF992 = "The tokenizer can't learn: no example has a text with words. Check the corpus that [initialize] reads."
    CRF993 = """The tokenizer can't learn sentences: no word behind the first of a text is known to begin one, or none is known to
        begin none. Set sentences = false in [nlp.tokenizer], or annotate them: token.is_sent_start is True, False or None
        (unknown). Texts of one sentence each say nothing: `crf convert --n-sents 10` joins them."""
    CRF994 = """The tokenizer can't learn words: some boundaries are unknown, and nothing tells where words go on, so it would
        cut everywhere. Give a lexicon, or texts whose words are known."""
    CRF995 = """The tokenizer can't learn: nlp.initialize() was called without examples, so there is nothing to learn from. Give
        examples, nlp.initialize(get_examples), or train with `spacy train`."""


@coded
class Warnings:
    CRFW043 = """numba {version} can't compile the vector code of spacy_crf, so kernels use loops, which give the same
        results in up to twice the time. Install a version of numba that spacy_crf was tested with. ({reason})"""
    CRFW130 = "The gazetteer '{name}' has no entries: {path} is empty. Templates that read it find nothing."
    CRFW201 = """The training data or the weights of '{key}' changed between two steps, so {optimizer} starts over and
        forgets the curvature (shown once). If steps have different data, use the whole corpus as batch: @batchers =
        "spacy_crf.full_batch.v1" in [training.batcher]; or, with max_epochs = -1, name it in
        [initialize.components.{key}.corpus], which a component reads when it is initialized."""
    CRFW465 = """{name}: the weights of {model} are counts of the initialization, so update changes nothing. To learn
        from other texts, initialize it with all texts."""
    CRFW825 = """{name}: the loss {loss} ignores the soft labels in doc.spans['{key}']. To learn from them use @losses =
        "spacy_crf.SoftLabels.v1"."""
    CRFW490 = "{path} can't be locked: {reason}. The work continues. Make sure that no other command writes there."
    CRFW401 = """{name}: the corpus is streamed (max_epochs = -1), so labels and features come from the first hundred
        examples only. Name the corpus in [initialize.components.{name}.corpus] to read all of it first, or use a fixed
        number of weights: @architectures = "spacy_crf.HashedEmissions.v1"."""
    CRFW402 = """{name}: {n} or more spans in doc.spans['{key}'] are wrong in a way that single tags can't express:
        {who} can only use spans of one token under the scheme BILUO. Losses such as LogLikelihood or MaxMargin use all
        of them, with LBFGS or Adam.v1."""
    CRFW403 = """{name}: {n} sequences (of the first batch with any) have annotation that no labelling fits, so training
        ignores them. Look for wrong spans in doc.spans that leave no label, and for alternatives that the tag scheme
        can't express."""
    CRFW404 = """{name}: the corpus is streamed (max_epochs = -1), but {optimizer} needs the whole corpus in each step and
        gets one batch instead. Name the corpus in [initialize.components.{name}.corpus], so that each step uses all of
        it, or use an optimizer that learns batch by batch, such as spacy_crf.AveragedPerceptron.v1."""
    CRFW405 = "{name}: {count} {problem}. First: {places}. Correct the annotation if this is not intended."
    CRFW925 = """Component '{name}': {path} has other settings than the component was saved with, and they are used: {other}. If
        somebody has edited the config, this ends the warning: spacy.load({folder!r}).to_disk({folder!r}). If not, a process was
        killed while it saved: save or copy the whole pipeline again."""
    CRFW412 = """{name}: no token of the examples is annotated, so no features were counted. It has {n} labels, and no
        features until update brings annotated texts."""
    CRFW420 = """{name}: '{doc}...': doc.spans['{key}'] leaves {n} without any label, first token {token}
        ('{word}'): nothing is written there. To block only some labels, give the spans these labels."""
    CRFW421 = """{name}: some spans are next to tokens without annotation ({n} or more in the first such batch), and the
        scheme needs two tags to show where these spans end. {who} look at one tag at a time, so they assume that no
        other span of the same label is next to them. The schemes BIO and BILUO lose nothing, nor do losses such as
        LogLikelihood or MaxMargin with LBFGS or Adam.v1."""
    CRFW422 = """{name}: decode = 'spans' with min_prob = 0 finds every span that is not impossible. Set min_prob to the
        lowest probability that you trust, such as 0.4; `python -m spacy crf threshold MODEL DATA` finds the best."""
    CRFW423 = """{name}: '{span}' would be {label} in '{text}...', but {other} found '{kept}' ({kept_label}) there, and
        entities never overlap: here and elsewhere those of the earlier component stay. The methods `n_best` and
        `span_probabilities` of {name} show its own findings. Put it before {other} if its entities matter more."""
    CRFW601 = """{name}: no labelling of '{doc}...' keeps all rules. Dropped, as later rules give way to earlier ones:
        {rules}."""
    CRFW602 = "{name}: the best labelling of '{doc}...' is not proved within {seconds} s (time_limit): {used} is used."
    CRFW603 = """{name}: what is found keeps the rules {rules}, but probabilities (crf_prob) are computed without them:
        {reason}. Harmless unless you use probabilities."""
    CRFW604 = "{name}: '{doc}...': the span '{span}' in doc.spans['{key}'] can't be kept: {reason}."
    CRFW605 = """{name}: no labelling of '{doc}...' that keeps all rules was found within {seconds} s (time_limit in the
        constraints). Dropped, as later rules give way to earlier ones: {rules}."""
    CRFW920 = """{name}: '{doc}...' may break the rules {rules}: the automaton of all rules that it would break has too many
        states (states times tags are at most 4,096), or none holds a rule, and only linear chains and segments have another
        search. Leave rules out, or count to smaller numbers."""
    CRFW610 = "{name}: rules {rules} hold in prediction, but not in training (in_training): no automaton holds them."
    CRFW858 = """{name} has {settings}, and {form} labels by the best path without thresholds, so some labels will differ.
        Weights and probabilities are kept. An export for NumPy alone keeps all: `crf export MODEL FILE --to npz`."""
    CRFW900 = """{name}: {form} does not know that no entity begins or ends with white space, so labels of sequences with
        tokens of white space may differ. Leave such tokens out there. An export for NumPy alone keeps it: `crf export
        MODEL FILE --to npz`."""
    CRFW901 = """{name}: {count} of {total} annotated spans begin or end with white space, such as {place}. They are compared
        without it, as they are learned; `spacy evaluate` compares them as they are, and counts them as missed."""
    CRFW885 = """{name} reads {attributes}, which none of {n} Docs of the training data has, so what reads them finds
        nothing. Put the component that sets it before this one and name it in [training.annotating_components], or
        leave the templates or similarities that read it out."""
    CRFW986 = """{name}: {share:.0%} of {n:,} tokens of the training data are not tokens that the pipeline's tokenizer makes of
        their text, such as {example}, so raw texts will be read in other tokens than those learned. Name the tokenizer
        that made them in [nlp.tokenizer], or let this one cut the texts: `crf convert --retokenize`."""
    CRFW907 = """{name}: with {tags} tags and {tokens:,} tokens each of some hundred passes over the training data takes about
        {seconds:.0f} s of CPU, since time grows by the square of the number of tags. What helps: {advice}the model
        spacy_crf.HigherOrder.v1 with order = 1 and keep = 4.0 (leaves out improbable tags)."""
    CRFW908 = """{name}: the new texts have no {label} where the model is sure of {n}, such as '{text}' in '{start}...': training
        on them unteaches {label}. If annotators did not look for it, name the labels that they looked for: --labels."""
    CRFW909 = """{name} has learned from {learned} of the {texts} of {path}: in texts that are new to it, it makes more
        mistakes, and its probabilities are less right. Give texts that were held out."""
    CRFW940 = """{name}: none of the {n} words of the training data {what}, so templates that read it find nothing.
        Check the language and the spelling."""
    CRFW990 = """tokenizer: rules in [nlp.tokenizer] forbid {n} boundaries that the training data has, or demand others, first in
        '{example}'. Rules count more than what was learned: correct them, or the data."""
    CRFW991 = """tokenizer: none of the {n} words of the lexicon is a word of the training data, so it says little. Check its
        language, script and spelling."""
    CRFW992 = """{source} was trained for the language {lang}, and the language of this pipeline is {ours}: load it into a
        pipeline of its language, or check how it cuts texts of the other one."""
    CRFW993 = """tokenizer: the rules {winner} and {loser} in [nlp.tokenizer] contradict each other, first in '{example}'. There
        {winner} holds. Change one of them."""
