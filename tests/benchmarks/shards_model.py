"""What training on shards is to cost on many machines, by a formula whose constants were measured on one:
``python -m tests.benchmarks.shards_model``. docs/training.md says what follows from it.
"""

from typing import NamedTuple

import typer

from .measure import show

# Seconds of a core, fitted to MEASURED; a byte's by `python -m tests.benchmarks.shards --alone` (docs/training.md)
_TOKEN = 0.6e-6  # summing up the weights of its features, and its share of the gradient
_PAIR = 0.15e-9  # of tags, for each token: forward and back
_BYTE = 2.5e-9  # that the main process sends, or receives and adds up
_CORES = 8  # of a machine


class Pass(NamedTuple):
    """bytes (int): That go through the main process. computing, reducing (float): Seconds."""

    bytes: int
    computing: float
    reducing: float

    @property
    def seconds(self) -> float:
        return self.computing + self.reducing


def cost(tokens: int, tags: int, variables: int, cores: int, workers: int, told: int) -> Pass:
    """workers (int): Of which each returns a gradient. told (int): How often the weights are sent: to each machine by Ray, to
    each worker by the executor for processes."""
    moved = 8 * variables * (workers + told)
    return Pass(moved, tokens * (_TOKEN + _PAIR * tags**2) / cores, moved * _BYTE)


def _found(tokens: int, tags: int, variables: int, workers: int) -> float:
    found = cost(tokens, tags, variables, max(1, workers), workers, workers)
    return found.seconds if workers else found.computing


MEASURED = {  # tokens, tags, variables, workers (0: CPU of one thread, without shards, while others computed), seconds a pass
    "wnut17": (62_730, 25, 162_147, 0, 0.052),
    "conll2000, 3,000 sentences": (71_319, 41, 257_748, 0, 0.075),
    "german_ler, 4,000 sentences": (106_117, 73, 214_799, 0, 0.179),
    "german_ler": (1_746_235, 77, 2_467_285, 2, 1.35),
}


def main(
    tokens: int = typer.Option(1_000_000_000, help="Of the corpus."),
    tags: int = typer.Option(77, help="As decoding knows them: 19 labels have 77 in BILUO."),
    variables: int = typer.Option(5_000_000, help="Weights that are trained."),
) -> None:
    """Seconds a pass for 1 to 64 machines, after what the formula says of the runs that its constants are from."""
    checked = [(name, *of, _found(*of[:4])) for name, of in MEASURED.items()]
    show("Here", ("data", "tokens", "tags", "variables", "workers", "s a pass", "by the formula"), checked)
    rows = []
    for machines in (1, 2, 4, 8, 16, 32, 64):
        cores = machines * _CORES
        by_core, by_machine = (cost(tokens, tags, variables, cores, workers, machines) for workers in (cores, machines))
        gigabytes = [found.bytes / 1e9 for found in (by_core, by_machine)]
        rows.append((machines, by_core.computing, gigabytes[0], by_core.seconds, gigabytes[1], by_machine.seconds))
    of_core, of_machine = ("GB, a worker a core", "s a pass"), ("GB, a worker a machine", "s a pass")
    show(
        f"{tokens:,} tokens, {tags} tags, {variables:,} variables",
        ("machines", "s to compute", *of_core, *of_machine),
        rows,
    )


if __name__ == "__main__":
    typer.run(main)
