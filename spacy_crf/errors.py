"""Every message of the package, under a code. 0xx scores and settings, 1xx features, 2xx optimizers, 3xx losses and models,
4xx components, 5xx saving, 6xx constraints, 7xx command line; CRF601 is an error, CRFW601 a warning. And the logger of the few
that every user shall read."""

import logging
import reprlib
from collections.abc import Iterable
from typing import Any, Optional

# `spacy train` leaves spaCy's logger at WARNING, yet every user shall read how many features there are, how far training is and
# why it stopped. A level of its own lets these few lines through to spaCy's handler, and nothing else that is logged at INFO.
announcements = logging.getLogger("spacy.spacy_crf.training")
if announcements.level == logging.NOTSET:
    announcements.setLevel(logging.INFO)


class _Coded(type):
    """Puts the code in front of each message, so that ``Errors.CRF001`` starts with ``CRF001: ``."""

    def __new__(cls, name, bases, namespace):
        coded = {key: f"{key}: {value}" if key.startswith("CRF") else value for key, value in namespace.items()}
        return super().__new__(cls, name, bases, coded)


def shown(value: Any) -> str:
    """A value as messages show it: cut short, whatever it is."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"<{type(value).__name__}>"


def known_names(names: Iterable[Any], *asked: Any) -> str:
    """Names that there are, as messages list them, and behind them those that were probably meant.

    asked: Names that there are not.
    """
    from rapidfuzz.distance import OSA
    from rapidfuzz.process import extractOne

    names = list(map(str, names))
    nearest = [
        extractOne(str(name), names, scorer=OSA.normalized_similarity, processor=str.lower, score_cutoff=0.6)
        for name in asked
    ]
    meant = " or ".join(dict.fromkeys(repr(found[0]) for found in nearest if found is not None))
    return (", ".join(names) or "none") + (f" (did you mean {meant}?)" if meant else "")


def counted(n: int, what: str) -> str:
    """A number of things: 1 label, 2,000 labels."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def cant_train(trainer: object, what: str, reason: str, fitting: str) -> ValueError:
    """CRF347, for a loss or an optimizer that can't train something, with those that can."""
    trainer = type(trainer).__name__
    return ValueError(Errors.CRF347.format(trainer=trainer, what=what, reason=reason, fitting=fitting))


def no_component(wanted: str, names: Iterable[str], named: Optional[str] = None) -> ValueError:
    """CRF710, for a pipeline without a component that fits.

    wanted (str): What the component has to be, for the message. names: Components there. named: The only name that fits.
    """
    components, named = known_names(names, *([named] if named else [])), f" named '{named}'" if named else ""
    return ValueError(Errors.CRF710.format(wanted=wanted, named=named, components=components))


class Errors(metaclass=_Coded):
    CRF001 = "Unknown tag scheme '{scheme}'. Known schemes: {known}."
    CRF010 = (
        "The {what} score of {where} is {value}. Scores must be finite, or -inf for what is forbidden: look for a weight that "
        "overflowed, or a feature that is not a number."
    )
    CRF011 = (
        "{what} has shape {shape}, but {expected} was expected: scores of one batch must agree about tokens and states."
    )
    CRF012 = (
        "starts = {starts} does not cut {tokens} tokens into sequences: it must begin with 0, end with {tokens} and never "
        "go back."
    )
    CRF013 = "Token {token} has state {state}, but there are only {states} states."
    CRF016 = (
        "The list of spans can't be used: {reason}. Spans are listed by their first token and then by their length, each "
        "once."
    )
    CRF020 = "{owner}: {name} = {value} is not possible: it must be {must}."
    CRF040 = "The ties can't be used: {reason}."
    CRF042 = (
        "JunctionTree: the exact answer for {tokens} tokens that ties connect needs a table of {size} numbers, and max_table = "
        "{most}. Raise it, tie fewer tokens, or take an approximation such as spacy_crf.BeliefPropagation.v1."
    )
    CRF030 = (
        "{tokens} tokens with up to {states} possible tags each have {arcs} pairs of neighbouring tags to look at: more than fit "
        "into memory. Set `keep` of spacy_crf.HigherOrder.v1, such as 4.0, to leave out tags that are not likely."
    )
    CRF034 = (
        "The rules {rules} compare spans across a text, which chains of higher order can't do: leave them out, or use "
        "spacy_crf.LinearChain.v2."
    )
    CRF035 = (
        "{name} was removed in version 0.14: use {successor}. Version 0.13 reads configs and pipelines that name {name}; to "
        "rewrite one for this version, run `python -m spacy crf upgrade OLD NEW`."
    )
    CRF037 = (
        "spacy_crf.SemiMarkov.v1 on spacy_crf.Tok2VecEmissions.v1 can't be rewritten: its encoder gave each label one score a "
        "token, that of spacy_crf.SemiMarkov.v2 gives four. Version 0.13 reads the model; for this version, train it again."
    )
    CRF101 = "Can't read '{part}' in the template '{template}'. Parts are joined by '|'. Known parts: {known}."
    CRF102 = "The ranges of the template '{template}' are not possible: {reason}."
    CRF106 = "The template '{template}' names the {what} '{name}', which is not there. {advice}. {there}: {known}."
    CRF107 = "The feature set has no templates: nothing to learn from. Give it at least one, such as 'lower[0]'."
    CRF109 = (
        "The feature '{source}' is {value} at token {token} ('{text}') of the document '{start}...': features are numbers "
        "of at most 3.4e38."
    )
    CRF110 = (
        "The feature function '{name}' returned {got} items for a document of {expected} tokens ('{start}...'). It returns "
        "one list of strings or numbers per token, or an array with one row per token."
    )
    CRF111 = (
        "{where}: {value} is not a feature. Give strings, finite numbers, or a dict from names to strings, numbers, booleans, "
        "lists of strings, or dicts of these."
    )
    CRF114 = (
        "The feature templates keep no feature of the training data (min_count = {min_count}, {seen} features seen). Lower "
        "min_count, or check that the training documents have the annotation the templates read."
    )
    CRF121 = "The template '{template}' joins what can't be joined: {reason}."
    CRF130 = (
        "The extension '{name}' is {value} at token {token} ('{text}') of the document '{start}...', which is no feature: a "
        "string, a boolean or an integer is a category, a float a number, and None nothing."
    )
    CRF131 = "The feature '{source}' has the value {value}, which is no text: {reason}."
    CRF202 = (
        "{optimizer} needs the objective of a CRF component; the component with the parameter {key} can't give one. "
        "Put this optimizer into the CRF component's own block, [components.NAME.optimizer], and use another, such as "
        "Adam.v1, in [training.optimizer]."
    )
    CRF203 = (
        "The training objective of '{key}' or its gradient is not a finite number at the present weights, so "
        "{optimizer} has nowhere to start; the weights are left as they were. Look for rules that forbid an annotated "
        "sequence, features with huge values, and weights loaded from a broken model."
    )
    CRF204 = "The saved state belongs to {saved}, but this is {ours}. Load it into an optimizer with the same settings."
    CRF205 = (
        "The state of {optimizer} for '{key}' can't be saved: the objective's signature {signature!r} is not made of "
        "str, bytes, int and tuples of these."
    )
    CRF206 = (
        "{what} of '{name}' is infinite or not a number {where}. The weights are those from before it. Look for features with "
        "huge values, or lower the learning rate."
    )
    CRF210 = (
        "The optimizer {optimizer} does not fit the loss {loss} of '{key}'. Losses that fit it: {losses}. Optimizers that fit "
        "the loss: {optimizers}."
    )
    CRF213 = (
        "SGD finds no learning rate for '{key}': with each that it tried, {tried}, the weights grow beyond all bounds. Its "
        "setting calibration_eta = {eta} is the first to try: take a smaller one, such as 0.1, and a calibration_rate such as 2."
    )
    CRF301 = "The feature templates of the config are not those the saved model was trained with. Only on one side: {templates}"
    CRF361 = (
        "Component '{name}': the loss {loss} can't be trained on a graph by {inference}. This inference trains with "
        "{losses}; this loss trains by {inferences}. To train by another inference than prediction uses, set training_inference."
    )
    CRF362 = (
        "Component '{name}': rules with in_training = true don't go together with ties between tokens, as no automaton holds "
        "these. Set in_training = false: the rules then hold in prediction, on chains that know what the ties say."
    )
    CRF364 = (
        "FactorGraph: {features} features of ties with tables of {labels} x {labels} labels are more than {most} weights. Take "
        "features with fewer values, or fewer of them."
    )
    CRF365 = (
        "Component '{name}': {optimizer} learns from one chain of order 1 after the other, which {model} is not made of: ties "
        "join the sequences of a Doc, hidden states make a chain below each label, and higher orders look further back. Use an "
        "optimizer that evaluates the objective, such as spacy_crf.LBFGS.v1, or one of thinc's."
    )
    CRF366 = "Component '{name}': {inference} does not give {question} where tokens are tied. These do: {fitting}."
    CRF367 = (
        "{owner} needs {what}, and '{text}...' has none ({reason}). Put the component that sets them before this one, and name "
        "it in [training] annotating_components."
    )
    CRF369 = (
        "{owner}: the span from {span} is not in '{text}...', which has {n} tokens. Give spans of the Doc with a word."
    )
    CRF371 = (
        "{owner} reads doc.spans['{key}'], and '{text}...' has no such spans; it has: {known}. Put the component that sets them "
        "before this one, and in training name it in [training] annotating_components; or set an empty list."
    )
    CRF372 = (
        "{owner}: the function gave {value} for '{text}...', but must give pairs of different tokens of the Doc: tokens, their "
        "numbers from 0 to {n} - 1, or spans."
    )
    CRF321 = (
        "transitions_from = 'possible' would give {n} n-grams of {m} tags a weight, and at most {most} are possible: take "
        "those that training shows (transitions_from = 'seen'), or a lower order."
    )
    CRF322 = (
        "order = {order} with {tags} tags: the numbers of n-grams would be too large, at most {most} tags are possible. With "
        "order = 1 there may be more."
    )
    CRF327 = "label_parts gave {found} for the tag '{tag}', but must give a list of texts, which may be empty."
    CRF346 = (
        "LatentChain: restarts = {restarts} is not possible with {emissions}: beginnings are compared by the objective, which "
        "needs sums of weights. Set restarts = 1, or take spacy_crf.SparseEmissions.v1."
    )
    CRF347 = "{trainer} can't train {what}: {reason}. Take {fitting}."
    CRF825 = (
        "Soft labels need a probability from 0 to 1 for each span in doc.spans['{key}'] of '{text}...': {problem}. Write one "
        "number for each span into attrs['scores'], as spaCy's spancat does."
    )
    CRF828 = (
        "Component '{name}' can't learn from soft labels with the scheme IOB1, whose tags depend on the entity before. Use "
        "BILUO, BIO or IO."
    )
    CRF833 = 'There are no texts in {path}: raw texts are one a line, or JSONL with "text".'
    CRF402 = (
        "Component '{name}' was not trained: it has labels but no weights. Call nlp.initialize() with examples, train it "
        "with `spacy train`, or load it from disk."
    )
    CRF403 = (
        "Component '{name}' finds no labels in the training data. Annotate some, or give them as "
        "[initialize.components.{name}] labels = [...]."
    )
    CRF406 = (
        "Component '{name}' can't write to the attribute '{attribute}'. Use 'tag', 'pos', 'morph', or the name of a Token "
        "extension that is set before the pipeline is built. Extensions set: {known}."
    )
    CRF431 = "Component '{name}': no token of the training data is annotated, so there is nothing to learn."
    CRF409 = (
        "Component '{name}': the spans {one} and {other} overlap. A labelling has one at most at a token: leave one of them "
        "out."
    )
    CRF340 = (
        'decode = "beam" searches the labellings of LinearChain, SemiMarkov and HigherOrder models, not those of {structure}. '
        'Set decode = "viterbi" with this model.'
    )
    CRF410 = (
        "Component '{name}' reads its corpus once, before training (max_epochs = -1, {optimizer} and "
        "[initialize.components.{name}.corpus]), but {others} in annotating_components would say something else at every step. "
        "Train and freeze what annotates first, or let max_epochs be 0 and the batch the whole corpus."
    )
    CRF411 = (
        "Component '{name}' has other labels, features or rules of training than when its corpus was read. Add them before "
        "nlp.initialize(), which reads it."
    )
    CRF412 = (
        "Component '{name}' does not know the labels {labels} of this batch, and its steps are about the corpus that was read "
        "when it was initialized. Add them before nlp.initialize(), or load the saved model and update that."
    )
    CRF413 = (
        "Component '{name}' has weights that are not finite numbers ('{param}' of {node}), and is not saved. Load the model that "
        "was saved last. Look for features with huge values, or lower the learning rate."
    )
    CRF423 = (
        "{name}: nothing is annotated in {path} that it could find, so there is nothing to compare with. Give annotated texts, "
        "or let it choose by what the model itself expects: --expected."
    )
    CRF440 = (
        "Component '{name}': the gold annotation '{label}' of {place} looks like '{negated}' negated, which entities don't have. "
        "Put the span into doc.spans, and name its key as incorrect_spans_key of the component. If '{label}' is a label, add it "
        "with add_label, or as one of [initialize.components.{name}] labels."
    )
    CRF441 = (
        "Component '{name}': {span}, {place}, is annotated and is in doc.spans['{key}'] too, where spans are that are wrong. "
        "Leave it out on one side."
    )
    CRF461 = "Component '{name}': a labelling is a list of Spans of the Doc, none of them empty, not {value}."
    CRF462 = (
        "Component '{name}': the span '{span}' belongs to the document '{other}...', whose words are not those of '{doc}...'. "
        "Make its Spans of the Doc that is asked about."
    )
    CRF465 = (
        "Component '{name}': the text '{text}...' has several labels: {labels}. The labels of doc.cats exclude each other: leave "
        "1.0 to one of them, or give spaCy's textcat_multilabel the texts that have several."
    )
    CRF466 = (
        "Component '{name}': doc.cats['{label}'] of the text '{text}...' is {value}. Write 1.0 for the label that a text has and "
        "0.0 for those it has not; leave out those of which nothing is known."
    )
    CRF469 = (
        "Component '{name}' needs at least two labels that exclude each other, and has: {labels}. For texts that have a label or "
        "not, annotate those that have it not with a label of their own, such as NOT_SPAM."
    )
    CRF470 = (
        "Component '{name}': with unit = \"sent\" each sentence has a hidden state, but the text '{text}...' has no sentences. "
        'Add a component in front of it that finds them, such as nlp.add_pipe("sentencizer", before="{name}"); in training it is '
        "to be one of [training] annotating_components."
    )
    CRF472 = (
        "The shards in {path} can't be used: {reason}. Give another path in [initialize.components.NAME.shards], or delete the "
        "folder to have them made anew."
    )
    CRF473 = (
        "The component {name} can't be sent to workers, or they can't import what it is made of: {reason}. Functions of "
        "templates (fn:), scorers and extensions must be in a module that is installed wherever workers run."
    )
    CRF474 = "Component '{name}' can't be trained on shards: {reason}. Leave out [initialize.components.{name}.shards]."
    CRF475 = (
        "{path} could not be written: {reason}. What was there before is still there: make room, and give the same command "
        "again."
    )
    CRF478 = (
        "Component '{name}': [initialize.components.{name}.shards] needs [initialize.components.{name}.corpus] beside it, the "
        "reader of what is cut into shards: of a corpus that is streamed (max_epochs = -1) spaCy shows the beginning only."
    )
    CRF670 = (
        "Component '{name}': start_from = {path} {why}. Name the folder of a saved pipeline with this component, or of the saved "
        "component itself; without start_from training begins anew."
    )
    CRF479 = (
        "Component '{name}' reads Docs, not {value}. Make one with nlp.make_doc(text), or with nlp(text) if features read "
        "earlier components."
    )
    CRF491 = (
        "The results can't go to {target}, a folder of what is annotated, {source}: the next time they would be texts too. Give "
        "a folder beside it."
    )
    CRF501 = "{source} is not {what} of spacy_crf: it does not begin with its header."
    CRF502 = (
        "{source} has format version {version}; this version of spacy_crf reads {known}. Install the version of spacy_crf that "
        "wrote it, or train it again."
    )
    CRF504 = "{source} holds a {saved}, not a {component}: the config names another factory than the saved model."
    CRF505 = (
        "{source} does not fit the component '{name}' of the config: {reason}. Load it with the config it was saved with, or "
        "train it again."
    )
    CRF507 = (
        "Component '{name}' is a copy that can't train: its optimizer has a schedule, and schedules can be neither copied nor "
        "sent to another process. Train the original, or save the pipeline and load it here."
    )
    CRF508 = "{source} is damaged: {reason}. Copy it again, or train it again."
    CRF509 = "{what} is {found} in the saved model, where {expected} is needed"
    CRF511 = "unpacked it takes more than {most:,} bytes, and files of ours never take {times} times their size"
    CRF510 = "{setting} = {saved!r} in the saved model, but {ours!r} in the config"
    CRF601 = "Rule {place} is not a rule: {rule!r}. A rule is a table with the key 'rule' and its arguments."
    CRF605 = "Rule {name}: {problem}."
    CRF610 = "{owner}: spaCy's Matcher refuses the pattern: {reason}"
    CRF611 = (
        "Rule '{name}': no function '{function}' is registered. Decorate it with @spacy.registry.misc('{function}') before the "
        "pipeline is built."
    )
    CRF612 = (
        "Rule '{name}': the function '{function}' returned {got} for a document of {tokens} tokens ('{start}...'). It "
        "returns an array bool[tokens, tags], here of shape {expected}."
    )
    CRF613 = (
        "Rules contradict each other: no labelling of any text keeps the rules up to '{name}' ({reason}). Change one of "
        "them, or give one a weight."
    )
    CRF614 = (
        "Rule '{name}' makes the automaton of all rules larger than {limit} states, and {what} has no other way to keep it. "
        "Leave the rule out, count to a smaller number, or raise `max_states` in the constraints (with many tags, states "
        "times tags are at most 4,096)."
    )
    CRF623 = "Rule '{name}' can't look for its pattern in '{doc}...': {reason}"
    CRF960 = (
        "Component '{name}' listens to an encoder before it ([components.{name}.model.tok2vec] upstream = '{upstream}'), but "
        "there is none of this name. Before it are: {before}. Put it there, such as factory = 'tok2vec', or give the component "
        "an encoder of its own in place of the listener."
    )
    CRF961 = (
        "Component '{name}' listens to an encoder before it (upstream = '{upstream}'), which says nothing about the text "
        "'{text}...'. Where it is one of [training] frozen_components, {advice}."
    )
    CRF962 = (
        "Component '{name}' listens to an encoder before it (upstream = '{upstream}'), but {where} of the text '{text}...' is "
        "empty. Run the encoder's component before it, neither disabled nor excluded, or give the component an encoder of its "
        "own: nlp.replace_listeners(ENCODER, '{name}', ['model.tok2vec'])."
    )
    CRF964 = (
        "Component '{name}' takes it that its encoder stays as it is (joint.mode = 'frozen'), but the one that it listens to "
        "(upstream = '{upstream}') learns. Name that in [training] frozen_components and annotating_components, or let the mode "
        "be 'adam'."
    )
    CRF965 = (
        "Component '{name}': its own optimizer, {optimizer}, would train the features of a pool (joint.mode = 'pool'), but never "
        "ends. Use spacy_crf.LBFGS.v1 or spacy_crf.ConjugateGradient.v1 in [components.{name}.optimizer]; or null, and features "
        "learn by what [training.optimizer] names."
    )
    CRF779 = "{part}: not one of the texts can be annotated, so it is hardly the texts. {place}: {error}"
    CRF780 = (
        "{deaths} workers died at the same part of the work, {task}: look whether it takes more memory than they have."
    )
    CRF781 = "{what} needs {package}, which can't be imported ({reason}): pip install {install}"
    CRF782 = (
        "The Ray cluster {where} can't be used: {reason}. Look whether it is running, can be reached from here and has free "
        "cores (ray status). Where no address is given (for crf train: --ray local) one is started on this machine."
    )
    CRF783 = (
        "Workers of the cluster have {package} {theirs}, but here it is {ours}, which may give other results. Install the same "
        "versions everywhere."
    )
    CRF784 = "{path} can't be annotated: {reason}. Texts are lines of text or JSONL, or the column 'text' of Parquet."
    CRF786 = (
        "The work in {path} can't be continued: {reason}. Give the same command as before, name another output, or delete "
        "the folder to begin anew."
    )
    CRF788 = "{option} needs {other} too."
    CRF789 = "--sort is for a single file: with --workers texts are written in the order in which they are read."
    CRF787 = "{place}: can't be annotated: {error}{advice}"
    CRF700 = "{path} has no files to convert. Known suffixes: {known}."
    CRF701 = "{place}: can't be read: {reason}."
    CRF702 = "{place}: two spans overlap, but a token has one entity at most: {first} and {second}. Remove one of them."
    CRF703 = "{place}: has {got} columns, but {expected} were expected."
    CRF704 = (
        "{place}: '{tag}' is not an entity tag like those in the rest of the file. Known: B-LABEL, I-LABEL, O, and - where "
        "annotation is missing; L- and U- in BILUO, E- and S- in BIOES."
    )
    CRF705 = (
        "{place}: '{tag}' follows '{before}', but can only continue an entity with its own label. In IOB2 the first tag of every "
        "entity is '{begin}'."
    )
    CRF706 = "{path} can't be read or written: {reason}."
    CRF707 = (
        "{place}: '{key}' holds annotation that is not understood ({value}) and would be lost. Annotation is read from {known}. "
        "Write it there, or leave '{key}' out with --ignore {key}."
    )
    CRF708 = "{path} holds no annotated texts: there is nothing to do."
    CRF709 = '{place}: this is JSON, but not an object with a string under "text". Give one text per line, or JSONL with "text".'
    CRF710 = "There is no component{named} {wanted}. Components: {components}."
    CRF712 = "Component '{name}': no examples were read. {reason}."
    CRF713 = "{one} and {other} would both be written to {target}. Rename one, or convert them one by one."
    CRF716 = (
        "{source} is a folder, and its files are converted one by one, but {target} is a file. Give a folder for them, or one of "
        "the files."
    )
    CRF714 = (
        "{place}: {keys} hold annotation, and nothing tells which of them counts. Remove one, or leave it out with "
        "--ignore {last}."
    )
    CRF715 = (
        "The pipeline {model} can't be loaded: {reason}\nFunctions that its config names are registered by the file given with "
        "--code."
    )
    CRF718 = "There are no texts: give them as arguments, or as lines of the standard input."
    CRF730 = "{path} is what is read: it would be lost if the output took its place. Give the output another name."
    CRF731 = "Only options of this command, and overrides of the config such as --paths.train, can be given: {reason}"
    CRF733 = "A text, a name or a file is no Unicode: {reason}. Give it in UTF-8."
    CRF736 = (
        "Process {process} works in {path} already. Wait until it has ended, or give another folder (of a training on shards: "
        "path in [initialize.components.NAME.shards])."
    )
    CRF737 = (
        "{path} can't be locked, so that nobody else works in it: {reason}. Give a path on another file system in "
        "[initialize.components.NAME.shards]."
    )
    CRF738 = (
        "A worker ended, with exit code {code}, before it began: what it said of that stands above. Workers import the script "
        "that starts them, so what a script does has to stand under: if __name__ == '__main__':"
    )
    CRF739 = (
        "Workers of the cluster can't import what they are to do: {reason}. Install spacy_crf, spaCy and what the pipeline needs "
        "on every machine, in the same versions."
    )
    CRF745 = (
        "What is given ({given}) does not say which config it is to be. Give --component NAME, with --recipe NAME and --optimize "
        "NAME or without; or --file NAME alone, for one of those that come with the package, as it is."
    )
    CRF746 = "Components {components} give probabilities, and --svg draws those of one. Say which: --component NAME."
    CRF750 = "{path} exists already: {advice}."
    CRF751 = "{component} has no recipe '{recipe}'. It has: {known}."
    CRF768 = "--optimize accuracy changes how labels of tokens are decided, and {component} gives one to a text. Leave it out."
    CRF722 = (
        "[training.score_weights] gives no weight to any score of the component '{name}', so there is nothing to tune it for. "
        "Its scores: {scores}."
    )
    CRF865 = (
        "{path}: none of {documents} texts, read as {format}, is annotated, though there are keys or columns for annotation; "
        "{lost} spans did not align with the tokens. If the annotation is elsewhere, say how to read it with --format, "
        "--label-column or --tag-column; if there is rightly none, add --without-spans."
    )
    CRF866 = "{place}: '{tag}' can't follow '{before}' in the scheme {scheme}. If the tags are of another, name it with --scheme."
    CRF867 = (
        "{place}: '{tag}' has no prefix such as B-, and no token of the file is 'O', so its last column may hold other tags than "
        "those of entities. If they are entities say --scheme bare; if they are tags, --tag-column names their column."
    )
    CRF879 = "{error} These are options of `spacy crf convert`: make a .spacy file with it, and give that."
    CRF868 = "--{option} {value}: there is no such column or attribute. Known: {known}."
    CRF869 = (
        "{place}: a table needs a header with columns of words and tags, or of texts and labels, and the columns are {names}. "
        "Say which they are with --word-column and --label-column (or --tag-column)."
    )
    CRF870 = (
        "{place}: tag or label {tag} is a number, and {n} names are known: name all of them in order with --tag-names "
        "O,B-PER,I-PER …"
    )
    CRF871 = (
        "{place}: a span says that its words are {words}, but at its offsets the text has {found}. Offsets count characters "
        "(not bytes, nor UTF-16 units) from 0."
    )
    CRF872 = (
        "{path} can't be read in '{encoding}', which is not a text encoding: name one such as utf-8, utf-16 or cp1252."
    )
    CRF873 = (
        "{place}: '{key}' holds annotation ({value}), which would be replaced. `spacy crf convert` makes training data of "
        "annotated texts; take the key out of them if they are to be annotated anew."
    )
    CRF874 = "The format '{format}' is for spans, and the pipeline finds tags of tokens only: write them as {known}."
    CRF876 = (
        "[{corpus}] has no path, so parts of the training texts can't be taken: a learning curve needs a reader of .spacy files, "
        'such as @readers = "spacy.Corpus.v1".'
    )
    CRF878 = (
        "{place}: the text has {n:,} characters, and a pipeline takes {most:,} at most. Split the text, at its paragraphs for "
        "example."
    )
    CRF880 = (
        "{place}: {value} can't be read as labels of a text: give a string, a list of strings, or a table with 1 for each label "
        "that the text has and 0 for each that it has not."
    )
    CRF726 = (
        "[{section}] {key} = {value} names nothing: write the name of a registered function in quotes, such as "
        '"spacy_crf.LinearChain.v2".'
    )
    CRF834 = (
        "Component '{name}' can't tell what a decision would be without a training text: {reason}. `effect` is known of linear "
        "chains, segments and MaxEntText on sparse features, trained with l2 > 0 and a loss such as spacy_crf.LogLikelihood.v1."
    )
    CRF838 = "Component '{name}' can't explain {what}: {reason}."
    CRF840 = "Component '{name}' can't split a decision up among its training texts: {reason}."
    CRF810 = (
        "{where}, but there is none. Give the component one, as a block [components.NAME.second_stage], or leave these templates "
        "out."
    )
    CRF811 = "Component '{name}' can't use its second_stage: {reason}; or set second_stage = null."
    CRF815 = (
        "Component '{name}' has a second_stage, whose first stage learns before other components do, but {others} in "
        "annotating_components would say something else by then. Train and freeze what annotates first, or set second_stage = "
        "null."
    )
    CRF800 = (
        "The feature template '{template}' reads vectors of words, and there are none. Name a pipeline with vectors as "
        "[initialize] vectors, or as [initialize.components.NAME] vectors. A model that was saved without its vectors can't be "
        "used: train it again."
    )
    CRF803 = "The vectors of {source} can't be used as features: {reason}."
    CRF851 = "This CRF was not trained: call fit(X, y), or read a saved one with CRF.load(path)."
    CRF853 = "X and y can't be learned from: {problem}. Give each sequence as many labels as tokens, strings that are not empty."
    CRF846 = "{owner}: no label is named {labels}. Labels: {known}."
    CRF847 = "--span {given!r} names no tokens: write 3:5 for tokens 3 and 4, or 3:5:LABEL. The text has {n} tokens: {words}."
    CRF890 = (
        "'{name}' can't be trained in {folds} folds on {texts} texts. It takes at least 2 folds, as many texts, and a "
        "component whose scores are sums of weights, without an encoder."
    )
    CRF854 = "{source} can't be read as {kind}: {place}: {reason}. Copy it again, or say with --from what it is."
    CRF855 = (
        "{source} is a pickle, and pickles run code when they are read, so this is not read. Where it was trained, write the "
        "model inside to a file: shutil.copy(crf.modelfile.name, 'model.crfsuite') for a CRF of sklearn-crfsuite. Then import "
        "that file."
    )
    CRF856 = "The template '{template}' can't be followed: {reason}."
    CRF895 = (
        "The feature template '{template}' reads farther than padding has texts: {before} before the sequence, {behind} behind "
        "it. Give a text for each position that templates reach."
    )
    CRF858 = (
        "Component '{name}' has {what}, which a model of CRFsuite does not hold: CRFsuite would give other labels. {how}, and "
        "export that."
    )
    CRF859 = (
        "--features {path} is not a function that can be imported: {reason}. Give package.module:function, which takes a Doc, or "
        "with --columns a list of words, and returns a list of feature dicts."
    )
    CRF861 = (
        "A model of CRFsuite knows the names of its features, not what makes them. Give the function that did with --features "
        "package.module:function, and --columns orth if it takes a list of words (orth,tag for tuples of words and tags) in "
        "place of a Doc."
    )
    CRF864 = (
        "The model reads {needed} columns, and --columns names {given}. Name an attribute of tokens for each, the last column of "
        "its training data (the labels) left out, such as --columns orth,tag."
    )
    CRF930 = (
        "Component '{name}' learns from one batch after the other, but [training.batcher] is spacy_crf.clock.v1, which gives "
        'texts only once. Take @batchers = "spacy.batch_by_words.v1" and max_epochs = 0, or an optimizer that looks at the '
        "whole corpus in each step, such as spacy_crf.LBFGS.v1."
    )
    CRF931 = (
        "Component '{name}' can't be trained with the tag scheme '{scheme}': --schemes is for crf_ner, and takes some of "
        "{known}, between commas."
    )
    CRF940 = (
        "The feature template '{template}' reads clusters, and there is no table of any. Name one as "
        '[initialize.components.NAME] clusters = "clusters.bin", which `spacy crf clusters` makes; or "spacy-lookups-data", or '
        '"vectors". A model that was saved without its table can\'t be used: train it again.'
    )
    CRF943 = (
        "{source} can't be used as clusters of words: {reason}. Give a file of `spacy crf clusters`, or lines with the bits of "
        "a cluster, a word and its count between tabs."
    )
    CRF944 = (
        "Component '{name}': no template reads the {what}. Add a template such as '{template}', or leave out "
        "[initialize.components.{name}] {setting}."
    )
    CRF946 = (
        "There are no packaged clusters of the language '{lang}': {reason}. Make your own with `spacy crf clusters`."
    )
    CRF948 = (
        "Can't make {what} from {source}: {reason}. Give more text, or lower --min-count or the number of clusters."
    )
    CRF950 = (
        "Component '{name}': its weights were learned with other {what}. Give the same {what} or none in {settings}, or leave "
        "out start_from to begin anew."
    )
    CRF951 = "The checkpoint {path} can't be used: {reason} Delete it to begin anew."
    CRF952 = (
        "Give texts and the file to write, for Brown clusters; or --from-vectors and the file to write, for clusters by k-means. "
        "Given: texts {files}, vectors {vectors}."
    )


class Warnings(metaclass=_Coded):
    CRFW040 = (
        "{owner}: '{word}' stands in '{text}...' so often that it would have more than max_edges = {most} ties: such words are "
        "not tied. Raise max_edges, or leave them out by only."
    )
    CRFW041 = (
        "Component '{name}': of {asked} groups of tied sentences so far, {n} did not settle: the answers of "
        "{inference} are those after its last iteration. {remedy}"
    )
    CRFW042 = (
        "{n} of {sentences} sentences have so many ties between their own tokens that {what} is approximate there (said once). "
        "Tie fewer tokens of a sentence, or set chain = false where ties make a tree."
    )
    CRFW043 = (
        "numba {version} can't compile the vector code of this package, so kernels use loops: the same results, but they take "
        "up to twice as long. Install a version of numba that spacy_crf was tested with. ({reason})"
    )
    CRFW369 = (
        "{owner}: '{text}...' has {n} different words to compare with each other, more than max_words = {most}: none of them are "
        "tied. Raise max_words, or leave more of them out by only or shortest."
    )
    CRFW370 = (
        "{owner}: the function gave more than max_edges = {most} pairs for '{text}...': none are tied. Raise max_edges, or give "
        "fewer."
    )
    CRFW371 = (
        "JunctionTree: {n} of {ties} ties between sentences were left out, so that no table has more than max_table = {most} "
        "numbers (said once): their ends would have said {information} nats of each other. Raise max_table for more."
    )
    CRFW130 = "The gazetteer '{name}' has no entries: {path} is empty. Templates that read it find nothing."
    CRFW131 = (
        "spacy_crf.VotedPerceptron.v1 takes no votes, and is called spacy_crf.BatchPerceptron.v1 now: use that name for the same "
        "algorithm. What comes nearest to votes, and usually learns better, is spacy_crf.AveragedPerceptron.v1."
    )
    CRFW201 = (
        "The training data or the weights of '{key}' changed between two steps, so {optimizer} starts over and forgets "
        "what it learned of the curvature (shown once). If the data differs from step to step, let every batch be the "
        'whole corpus: @batchers = "spacy_crf.full_batch.v1" in [training.batcher]; or, with max_epochs = -1, name it in '
        "[initialize.components.{key}.corpus], which is read where the component is initialized (neither loaded nor sourced)."
    )
    CRFW465 = (
        "{name}: the weights of {model} are counts, which are complete after the initialization: update changes nothing. To "
        "learn from other texts, initialize it with all of them."
    )
    CRFW825 = (
        "{name}: there are soft labels in doc.spans['{key}'], which the loss {loss} does not look at. To learn from them take "
        '@losses = "spacy_crf.SoftLabels.v1".'
    )
    CRFW345 = (
        "Component '{name}': the best labellings of {n} sequences are not proven, as too many come close. The answer is the "
        "best labellings found, which include those of the most probable paths of hidden states. This warning is shown once."
    )
    CRFW346 = (
        "Component '{name}': decode = \"labelling\" can't look for the best labelling under rules that no automaton holds: "
        "{rules}. Texts get the labelling of the most probable path of hidden states that keeps them. Raise `max_states`, or "
        "take the rules out. This is said once."
    )
    CRFW490 = (
        "{path} can't be locked: {reason}. The work goes on; see to it that no other command writes there meanwhile."
    )
    CRFW401 = (
        "{name}: the corpus is streamed (max_epochs = -1), so labels and features are those of the first hundred examples only. "
        "Name the corpus in [initialize.components.{name}.corpus] to have all of them counted in a first pass, or let "
        'features share a fixed number of rows: @architectures = "spacy_crf.HashedEmissions.v1".'
    )
    CRFW402 = (
        "{name}: {n} or more spans in doc.spans['{key}'] are known to be wrong, but no single tag shows it: {who} can only use "
        "those of one token under scheme BILUO. Losses such as LogLikelihood or MaxMargin use all of them, with LBFGS, "
        "ConjugateGradient or Adam.v1."
    )
    CRFW403 = (
        "{name}: {n} sequences (of the first batch with any) are annotated as no labelling can be, and teach nothing. Look for "
        "wrong spans in doc.spans that leave nothing, and for alternatives that the tag scheme can't spell."
    )
    CRFW404 = (
        "{name}: the corpus is streamed (max_epochs = -1), but {optimizer} looks at a whole corpus in each step, for which it "
        "takes each batch. Name the corpus in [initialize.components.{name}.corpus]: it is read once, block by block, and every "
        "step is about all of it. Or take an optimizer that learns from batch after batch, such as "
        "spacy_crf.AveragedPerceptron.v1."
    )
    CRFW405 = "{name}: {count} {problem}. First: {places}. Correct the annotation where this is not what it is to mean."
    CRFW412 = (
        "{name}: no token of the examples is annotated, so nothing was counted: it has {n} labels, and no features until update "
        "brings annotated texts."
    )
    CRFW420 = (
        "{name}: '{doc}...': doc.spans['{key}'] leaves {n} tokens no label, first token {token} ('{word}'): they stay "
        "without one. Name the labels that are blocked, if others may be found there."
    )
    CRFW421 = (
        "{name}: {n} or more spans of the first batch with any touch tokens without annotation, and its scheme needs two tags "
        "to show where they end. {who} look at one tag at a time, and assume that no span of the same label is beside "
        "them. With scheme BIO or BILUO nothing is lost; nor with losses such as LogLikelihood or MaxMargin and LBFGS, "
        "ConjugateGradient or Adam.v1."
    )
    CRFW422 = (
        "{name}: decode = 'spans' with min_prob = 0 finds whatever is not quite impossible. Set min_prob to the least "
        "probability that you trust, such as 0.4; `python -m spacy crf threshold MODEL DATA` finds the best."
    )
    CRFW423 = (
        "{name}: '{span}' would be {label} in '{text}...', but {other} has found '{kept}' ({kept_label}) there, and entities "
        "never overlap: those of the component in front stay, here and wherever else. What {name} finds by itself say its "
        "methods `n_best` and `span_probabilities`; put it in front of {other} if its entities matter more."
    )
    CRFW601 = (
        "{name}: no labelling of '{doc}...' keeps all rules. Dropped, as later rules give way to earlier ones: {rules}."
    )
    CRFW602 = (
        "{name}: {seconds} s were not enough to be sure of the best labelling of '{doc}...': {used} is used (time_limit in the "
        "constraints)."
    )
    CRFW603 = "{name}: probabilities ignore the rules {rules}: {reason}."
    CRFW604 = "{name}: '{doc}...': the span '{span}' in doc.spans['{key}'] can't be kept: {reason}."
    CRFW605 = (
        "{name}: no labelling of '{doc}...' that keeps all rules was found within {seconds} s (time_limit in the "
        "constraints). Dropped, as later rules give way to earlier ones: {rules}."
    )
    CRFW610 = (
        "{name}: the rules {rules} hold in prediction, but not in training, although in_training is true: no automaton "
        "holds them, so the sums over all labellings can't respect them. The other rules hold in both."
    )
    CRFW607 = (
        "{name}: '{doc}...' has ties, and a junction tree does not hold all of its rules too: its tables would have more than "
        "max_table = {most} numbers, or no automaton holds a rule. The answers come from chains whose scores include "
        "messages of the ties."
    )
    CRFW885 = (
        "{name}: templates read {attributes}, which none of {n} Docs of the training data has, so they find nothing. Put the "
        "component that sets it before this one and name it in [training.annotating_components], or leave these templates out."
    )
    CRFW940 = (
        "{name}: none of the {n} words of the training data {what}: templates that read it find nothing. Are they of another "
        "language, or spelled otherwise?"
    )
