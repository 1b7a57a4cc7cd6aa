"""What other packages say of the graphs that ``lab.tests.benchmarks.graph_rivals`` writes, and how long they take. Run by the
Python that has them, of which it needs nothing else: ``python graph_packages.py PACKAGE GRAPHS``"""

import json
import sys
import time

import numpy as np

ROUNDS = 5


def main() -> None:
    package, path = sys.argv[1:]
    with np.load(path) as arrays:
        n = int(arrays["n"])
        graphs = [{name: arrays[f"{name}{g}"] for name in ("own", "edges", "tables")} for g in range(n)]
    for graph in graphs:
        print(json.dumps(PACKAGES[package](**graph)), flush=True)


def timed(ask):
    """What is found, and the CPU seconds of the median of some rounds."""
    found, seconds = ask(), []
    for _ in range(ROUNDS):
        start = time.process_time()
        ask()
        seconds.append(time.process_time() - start)
    return found, sorted(seconds)[ROUNDS // 2]


def pgmpy(own, edges, tables):
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import BeliefPropagation
    from pgmpy.models import MarkovNetwork

    size = own.shape[1]
    model = MarkovNetwork()
    model.add_nodes_from(range(len(own)))
    model.add_edges_from(edges.tolist())
    factors = [DiscreteFactor([t], [size], np.exp(row)) for t, row in enumerate(own)]
    factors += [DiscreteFactor(pair, [size] * 2, np.exp(table)) for pair, table in zip(edges.tolist(), tables)]
    model.add_factors(*factors)

    def ask():
        messages = BeliefPropagation(model)
        messages.calibrate()
        return float(np.log(next(iter(messages.get_clique_beliefs().values())).values.sum()))

    log_z, seconds = timed(ask)
    return {"log_z": log_z, "seconds": seconds}


def junctiontree(own, edges, tables):
    import junctiontree as package

    vars(np).setdefault("in1d", np.isin)  # which newer versions of numpy have not got

    names = [f"t{t}" for t in range(len(own))]
    factors = [[name] for name in names] + [[names[u], names[v]] for u, v in edges.tolist()]
    values = [*np.exp(own), *np.exp(tables)]

    def ask():
        tree = package.create_junction_tree(factors, dict.fromkeys(names, own.shape[1]))
        return tree.propagate(values)

    marginals, seconds = timed(ask)
    return {"log_z": float(np.log(np.sum(marginals[0]))), "seconds": seconds}


def pgmax(own, edges, tables):
    """The iterations that it takes until no marginal moves by more than 1e-4."""
    import jax
    from pgmax import fgraph, fgroup, infer, vgroup

    variables = vgroup.NDVarArray(num_states=own.shape[1], shape=(len(own),))
    graph = fgraph.FactorGraph(variables)
    pairs = [[variables[int(u)], variables[int(v)]] for u, v in edges]
    graph.add_factors(fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=tables))
    messages = infer.build_inferer(graph.bp_state, backend="bp")
    begin = messages.init(evidence_updates={variables: jax.numpy.array(own)})

    def ask(iterations):
        arrays = messages.run(begin, num_iters=iterations, damping=0.0, temperature=1.0)
        return np.asarray(infer.get_marginals(messages.get_beliefs(arrays))[variables])

    iterations, before = 4, ask(2)
    while iterations < 1000 and abs(ask(iterations) - before).max() > 1e-4:
        before, iterations = ask(iterations), 2 * iterations
    found, seconds = timed(lambda: ask(iterations))
    return {"marginals": found.tolist(), "seconds": seconds, "iterations": iterations}


PACKAGES = {"pgmpy": pgmpy, "junctiontree": junctiontree, "pgmax": pgmax}

if __name__ == "__main__":
    main()
