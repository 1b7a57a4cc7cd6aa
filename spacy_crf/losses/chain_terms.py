"""The terms of local losses in linear chains.

Each function returns the losses of the sequences (float64[B]), their derivative (ChainScores), and which of them have a term that
no state satisfies (bool[B]).
"""

import numpy as np

from ..inference.linear_chain import LinearChain
from ..kernels.local import marginal_gradient
from ..types import ChainScores
from .terms import Annotation, any_token, choices, ends, log_sum, per_sequence, token_factors


def marginals(structure: LinearChain, scores: ChainScores, annotation: Annotation):
    """See `PseudoLikelihood`."""
    edges = structure.edge_marginals(scores)
    nodes = structure.marginals(scores)
    clamp, starts = annotation.clamp, scores.starts
    probability = (nodes * clamp).sum(axis=1)
    impossible = any_token(probability <= 0.0, starts)
    factors = token_factors(annotation, impossible, starts)
    safe = np.where(probability > 0.0, probability, 1.0)
    terms = -factors * np.log(np.minimum(safe, 1.0))
    # The derivative of log p(token t in A) is the expectation of 1[in A] / p over labellings, less 1: sums along the chain
    rewards = np.where(clamp, (factors / safe)[:, np.newaxis], 0.0)
    d_nodes, d_edges = np.zeros_like(nodes), np.zeros_like(edges)
    marginal_gradient(nodes, edges, np.ascontiguousarray(rewards), starts, d_nodes, d_edges)
    opens, closes = ends(starts, len(d_nodes))
    d_transitions = d_edges if np.ndim(scores.transitions) == 3 else d_edges.sum(axis=0)
    d_scores = ChainScores(d_nodes, d_transitions, d_nodes[opens].sum(axis=0), d_nodes[closes].sum(axis=0), starts)
    return per_sequence(terms, starts), d_scores, impossible


def conditionals(structure: LinearChain, scores: ChainScores, annotation: Annotation):
    """See `BesagPseudoLikelihood`."""
    clamp, starts = annotation.clamp, scores.starts
    n_tokens, size = clamp.shape
    gold = np.where(clamp.sum(axis=1) == 1, clamp.argmax(axis=1), -1)
    opens, closes = ends(starts, n_tokens)
    inner = np.flatnonzero(~opens)
    known = gold >= 0
    has_term = known.copy()
    has_term[inner] &= known[inner - 1]
    has_term[inner - 1] &= known[inner]
    per_position = np.ndim(scores.transitions) == 3
    shared = None if per_position else np.asarray(scores.transitions)
    before = np.maximum(gold[inner - 1], 0)
    after = np.maximum(gold[inner], 0)
    logits = np.array(scores.emissions, dtype=np.float64)
    logits[opens] += scores.first
    logits[closes] += scores.last
    logits[inner] += scores.transitions[inner, before] if per_position else shared[before]
    logits[inner - 1] += scores.transitions[inner, :, after] if per_position else shared[:, after].T
    rows = np.flatnonzero(has_term)
    terms, d_rows, impossible = choices(logits[rows], gold[rows], rows, annotation, starts)
    d_logits = np.zeros((n_tokens, size))
    d_logits[rows] = d_rows
    d_scores = ChainScores(
        d_logits, np.zeros(np.shape(scores.transitions)), d_logits[opens].sum(0), d_logits[closes].sum(0), starts
    )
    if per_position:
        d_scores.transitions[inner, before] += d_logits[inner]
        d_scores.transitions[inner, :, after] += d_logits[inner - 1]
    else:
        np.add.at(d_scores.transitions, before, d_logits[inner])
        np.add.at(d_scores.transitions.T, after, d_logits[inner - 1])
    return terms, d_scores, impossible


def pieces(structure: LinearChain, scores: ChainScores, annotation: Annotation):
    """See `Piecewise`."""
    clamp, starts = annotation.clamp, scores.starts
    n_tokens, size = clamp.shape
    opens, closes = ends(starts, n_tokens)
    # [T, S before, S]; the first token of a sequence has one predecessor, which stands in row 0
    scored = np.array(np.broadcast_to(scores.transitions, (n_tokens, size, size)), dtype=np.float64)
    scored[opens] = -np.inf
    scored[opens, 0] = scores.first
    scored += scores.emissions[:, np.newaxis]
    scored[closes] += scores.last
    allowed = np.repeat(clamp[:, np.newaxis], size, axis=1)
    allowed[1:] &= clamp[:-1, :, np.newaxis] | opens[1:, np.newaxis, np.newaxis]
    flat = scored.reshape(n_tokens, -1)
    clamped = np.where(allowed, scored, -np.inf).reshape(n_tokens, -1)
    log_z, reached = log_sum(flat), log_sum(clamped)
    impossible = any_token(reached == -np.inf, starts)
    factors = token_factors(annotation, impossible, starts)
    log_z, reached = (np.where(value > -np.inf, value, 0.0) for value in (log_z, reached))
    d_pieces = np.exp(flat - log_z[:, np.newaxis]) - np.exp(clamped - reached[:, np.newaxis])
    d_pieces = (factors[:, np.newaxis] * d_pieces).reshape(scored.shape)
    d_nodes = d_pieces.sum(axis=1)
    d_pieces[opens] = 0.0
    d_scores = ChainScores(
        d_nodes,
        d_pieces if np.ndim(scores.transitions) == 3 else d_pieces.sum(axis=0),
        d_nodes[opens].sum(axis=0),
        d_nodes[closes].sum(axis=0),
        starts,
    )
    return per_sequence(factors * (log_z - reached), starts), d_scores, impossible
