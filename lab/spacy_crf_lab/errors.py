"""All messages of the lab, each with a code that the plugin does not use, and those of the plugin."""

from spacy_crf import errors
from spacy_crf.errors import coded


@coded
class Errors(errors.Errors):
    """Messages of errors."""

    CRF040 = "The ties can't be used: {reason}."
    CRF042 = """JunctionTree: {tokens} connected tokens need a table of {size} numbers, and max_table = {most}. Raise
        max_table, tie fewer tokens, or use an approximation such as spacy_crf_lab.BeliefPropagation.v1."""
    CRF350 = """GraphCut: scores of {what} that a cut can't stand for: labels {i} and {j}, with label {a} twice, score
        {together:.4g}, but each of them with label {a} scores {apart:.4g} together, which is more. Use the inference
        spacy_crf_lab.DualDecomposition.v1, or set associative = true in all cliques and chain = false in the model."""
    CRF351 = """FactorGraph: {inference} as {setting} takes no groups, but cliques.{clique} has edges = "group". Use
        {fitting}, or other edges."""
    CRF352 = 'There are no bounds for Docs with groups (cliques with edges = "group"). Use other edges to ask for them.'
    CRF353 = """Component '{name}': the loss {loss} can't train groups (cliques with edges = "group"). Use
        spacy_crf.Perceptron.v1 or spacy_crf.MaxMargin.v1, or other edges."""
    CRF354 = """Component '{name}': {inference} can't be used with tags that exclude each other as neighbours: {n} pairs of
        tags do. Use the inference spacy_crf_lab.DualDecomposition.v1; or chain = false with scheme = "IO" or a tagger."""
    CRF355 = (
        "LinearProgram needs scipy, which is not installed. Install it (pip install scipy), or use another inference."
    )
    CRF356 = (
        "LinearProgram: no solution for a program of {n} variables ({message}). Use spacy_crf_lab.DualDecomposition.v1."
    )
    CRF361 = """Component '{name}': the loss {loss} can't be trained on a graph by {inference}, which trains {losses}.
        This loss is trained by {inferences}: set training_inference to one of these."""
    CRF362 = """Component '{name}': rules with in_training = true can't be combined with ties between tokens. Set
        in_training = false: rules then hold in prediction, on chains whose scores include the ties."""
    CRF364 = """FactorGraph: {features} features of ties, each with {labels} x {labels} weights, have more than {most}
        weights. Use fewer features, or features with fewer values."""
    CRF366 = "Component '{name}': {inference} gives no {question} for tied tokens. These do: {fitting}."
    CRF367 = """{owner} needs {what}, and '{text}...' has none ({reason}). Put a component that sets them before this
        one, and name it in [training] annotating_components."""
    CRF369 = "{owner}: the span {span} is not in '{text}...', which has {n} tokens. Give spans of the Doc that are not empty."
    CRF371 = """{owner} reads doc.spans['{key}'], which '{text}...' does not have. It has: {known}. Put the component
        that sets these spans before this one, and name it in [training] annotating_components; or set an empty list."""
    CRF372 = """{owner}: the function returned {value} for '{text}...'. Return pairs of different tokens of the Doc:
        tokens, their numbers from 0 to {n} - 1, or spans."""
    CRF346 = """LatentChain: restarts = {restarts} is not possible with {emissions}, since restarts are compared by the
        objective of sparse features. Set restarts = 1, or use spacy_crf.SparseEmissions.v1."""
    CRF470 = """Component '{name}': unit = "sent" needs sentences, and the text '{text}...' has none. Add a component in
        front that finds them, such as nlp.add_pipe("sentencizer", before="{name}"), and name it in [training]
        annotating_components."""
    CRF485 = (
        "{path} has no labels of texts (doc.cats). Give texts such as {{'text': …, 'cats': ['A', 'B']}} (docs/data.md)."
    )
    CRF640 = (
        """{unit}._.{name} of '{text}...' is {value}. Set a number from -1e100 to 1e100, or None if it is not known."""
    )
    CRF641 = """No graph of {names} can be learned: {n} tokens have all of these numbers, and each of them has to differ from
        token to token. Leave a constant number out, or give texts whose tokens have them (token._.NAME)."""
    CRF642 = """{owner}: the covariance is not positive: its least eigenvalue is {least:.2g}. Leave out variables that follow
        from others, or add a small number to its diagonal."""
    CRF643 = (
        "--numbers {value} is not possible. Name at least two extensions of tokens, such as ext:length,ext:frequency."
    )
    CRF650 = """GaussianChain: the function '{name}' has to give the places of two different numbers of '{text}...', from 0 to
        {n} - 1, and a similarity of at least 0: {reason}."""
    CRF651 = """GaussianChain: similar numbers that are far apart make a matrix with {entries} entries for {n} numbers, and {most}
        are possible. Make fewer numbers similar, or give smaller groups of texts."""
    CRF652 = """The {n} numbers of the training data, from {least} to {most}, do not differ, so there is nothing to learn. Give
        numbers that do, by at least 1e-100."""
    CRF481 = """LabelGraph: exact sums over {labels} labels with {edges} pairs need tables of more than {most} numbers. Lower
        max_degree or raise l1 of spacy_crf_lab.LearnedGraph.v1, take spacy_crf_lab.LabelTree.v1, or set inference, such as
        spacy_crf_lab.BeliefPropagation.v1."""
    CRF483 = """Component '{name}': no text of the training data has a value for each of the {labels} labels in doc.cats, so no
        graph of labels can be learned. Set 1.0 or 0.0 for all labels, or take spacy_crf_lab.Hierarchy.v1."""
    CRF484 = "Hierarchy: a label is its own ancestor: {line}. Remove one of these from parents."
    CRF492 = "doc._.{name} of the document '{text}...' is {value}. It has to be {must}."
    CRF493 = """Two documents of the collection {group} have the id {id} (doc._.crf_id); the second one is '{text}...'. Give each
        document an id of its own, or another collection (doc._.crf_group)."""
    CRF620 = """{owner}: the matrix of the kernel '{kernel}' is not positive: its eigenvalues are between {least} and {most}. Set
        an offset of at least 0, and features with finite values."""
    CRF621 = """{owner}: a basis of all {n} different tokens needs {gigabytes} GB of memory. Set select = "random", and basis to
        at most {most}."""
    CRF622 = """{owner}: DualPerceptron has changed the basis of the kernel, so the texts have to be read again. Give the other
        optimizer a new list of examples, or initialize the component for it."""
    CRF633 = (
        """Component '{name}': experts = "labels" {problem}. Set experts to "positions" or "random", or name models."""
    )
    CRF634 = """{owner}: experts = "{experts}" leaves the expert '{expert}' without templates: {reason}. Add some, or choose
        other experts."""
    CRF636 = "OutputCodes: {reason}. {do}."
    CRF637 = """OutputCodes: codes = {codes} changes the bits of {known} tags that have been learned, for {tags} tags. Initialize
        the component with all labels, or set codes to "random", "one_vs_rest" or "parts"."""
    CRF638 = """OutputCodes learns the bits of tags one by one, so rules, spans that are known to be wrong, and partial annotation
        in the scheme IOB1 can't take effect in training. Leave in_training of rules at false, set incorrect_spans_key to null,
        or choose the scheme BIO."""
    CRF340 = "spacy_crf_lab.beam.v1 works with LinearChain, SemiMarkov and HigherOrder alone. Set decoder = null."
    CRF644 = """Component '{name}' needs variances of its weights, but {problem}. Train it with the optimizer
        spacy_crf_lab.LaplacePropagation.v1, or do without spacy_crf_lab.draws.v1 and --sort variance."""
    CRF645 = "Component '{name}' can't draw weights: {problem}. Do without spacy_crf_lab.draws.v1 and --sort variance."
    CRF625 = """{owner} has no weights, and hidden states begin with random ones: all of them would stay alike.
        Take spacy_crf.SparseEmissions.v1."""


@coded
class Warnings(errors.Warnings):
    """Messages of warnings."""

    CRFW040 = """{owner}: '{word}' occurs so often in '{text}...' that it would have more than max_edges = {most} ties,
        so it is not tied. Raise max_edges, or exclude the word with `only`."""
    CRFW041 = """Component '{name}': {inference} did not converge for {n} of {asked} groups of tied sentences (or labels) so far;
        its answers are those of the last iteration. {remedy}"""
    CRFW042 = """{n} of {sentences} sentences have so many ties between their own tokens that {what} is approximate
        there (shown once). Tie fewer tokens of a sentence, or set chain = false where ties form a tree."""
    CRFW346 = """Component '{name}': spacy_crf_lab.labelling.v1 can't search for the best labelling under the rules {rules},
        which no automaton holds. Texts get the labelling of the most probable path of hidden states that keeps them
        (shown once). Raise `max_states`, or leave the rules out."""
    CRFW369 = """{owner}: '{text}...' has {n} different words to compare, more than max_words = {most}, so none are
        tied. Raise max_words, or exclude more words with `only` or `shortest`."""
    CRFW370 = "{owner}: more than max_edges = {most} pairs for '{text}...', so none are tied. Raise it or return fewer."
    CRFW371 = """JunctionTree: {n} of {ties} ties between sentences, which carry {information} nats, were left out to
        keep tables within max_table = {most} numbers (shown once). Raise max_table to use more ties."""
    CRFW480 = """Component '{name}': no text of the training data {which} {labels}, so training can't tell when a text does.
        Set 1.0 for the labels of a text and 0.0 for those that it does not have; values that are left out are not known."""
    CRFW481 = """{owner}: {method} did not converge: the last step changed a weight by {gap:.2g}. A larger l1
        converges sooner."""
    CRFW345 = """Component '{name}': the labellings of {n} sequences may not be the best, since too many come close
        (shown once). They are at least as good as those of the most probable paths of hidden states."""
    CRFW491 = """{owner}: {n} of {links} links name an id that no Doc of the same collection and batch has, and are
        ignored (shown once). The first one is {link}, in '{text}...'. Set doc._.crf_id and doc._.crf_group of all
        linked Docs, and put the Docs of a group into one batch."""
    CRFW492 = """{owner}: {n} documents that are linked together would have more than max_edges = {most} ties to each
        other, so they are not tied (shown once). Raise max_edges, or leave such links out."""
    CRFW607 = """{name}: {inference} can't keep all rules of a text with ties (shown once): none of its automata holds one, or
        max_table is too small. Chains whose scores include messages of the ties answer."""
    CRFW620 = """Component '{name}': DualPerceptron begins anew with other texts, and forgets what it counted. Give all texts in
        each step: [training.batcher] @batchers = "spacy_crf.full_batch.v1"."""
    CRFW621 = """{owner}: the weights of the kernels still change by {change} after {n} rounds. The last ones are used. A larger
        norm converges faster; or leave out a kernel that is much like another."""
    CRFW630 = """Component '{name}': FeatureInduction has no conjunctions to choose from: no template joins others. Take
        the features spacy_crf_lab.feature_pairs.v1, or set conjunctions = false."""
    CRFW644 = """Component '{name}': LaplacePropagation has not converged after {n} sweeps: the last one moved the weights by
        {gap:.2g} of their length, more than delta = {delta}. Raise max_iterations, or damping if this does not help."""
    CRFW633 = """Component '{name}': holdout = {holdout} held out none of the {n} annotated texts, so the weights of the experts
        stay equal. Give more texts, a larger holdout, or set weights to "equal"."""
