"""Lists the kernels that training and prediction call, by structure, with the shipped configs: default token features, trained by
L-BFGS. A progress bar shows how many are left to compile. A kernel that is compiled for numbers of two widths is listed twice."""

from collections import Counter


def _named(**names: str) -> Counter[str]:
    return Counter(f"{module}.{name}" for module, of_module in names.items() for name in of_module.split())


_ANY_PREDICTION = _named(
    checks="well_formed",
    hashing="find_known hash_affixes hash_features insert look_up make_sieve place read_columns sequence_starts",
    sparse_rows="add_kind_rows add_references add_rows lay_out_slots",
)
_ANY_TRAINING = _ANY_PREDICTION + _named(
    hashing="count hash_rows list_pairs mark_pairs", sparse_rows="add_listed scatter_listed"
)
_TOKEN_TRAINING = _named(
    hashing="hash_ngrams", sparse_rows="add_kind_rows add_references scatter_kind_rows scatter_references"
)
# Exact probabilities of spans, and the most valuable set of them
_SETS = _named(
    chain_set="take",
    checks="well_formed well_listed",
    semi_markov="no_mask running_sums viterbi",
    spans="likely_spans",
)
PREDICTION = {
    "linear_chain": _ANY_PREDICTION + _named(hashing="hash_ngrams", linear_chain="viterbi"),
    "chain_set": _ANY_PREDICTION + _SETS + _named(hashing="hash_ngrams", linear_chain="expectations forward scale"),
    "semi_markov": _ANY_PREDICTION
    + _named(
        checks="well_listed",
        hashing="hash_ngrams",
        segment_features="list_known",
        semi_markov="no_mask running_sums viterbi",
        sparse_rows="add_scores",
    ),
    "hidden_chain": _ANY_PREDICTION + _named(linear_chain="forward scale"),
}
TRAINING = {
    "linear_chain": _ANY_TRAINING
    + _TOKEN_TRAINING
    + _named(
        linear_chain="expectations forward only_path path_expectations path_score scale transition_expectations viterbi"
    ),
    "chain_set": _ANY_TRAINING
    + _TOKEN_TRAINING
    + _SETS
    + _named(
        chain_set="add",
        linear_chain="expectations forward only_path path_expectations path_score scale transition_expectations",
    ),
    "semi_markov": _ANY_TRAINING
    + _TOKEN_TRAINING
    + _named(
        checks="well_listed",
        segment_features="hash_spans hash_whole list_known",
        semi_markov="cover expectations forward no_mask only_path path_expectations path_score running_sums viterbi",
        sparse_rows="add_scores",
    ),
    "hidden_chain": _ANY_TRAINING + _named(linear_chain="expectations forward scale transition_expectations"),
}
