"""``python -m spacy crf train`` as a process, which may be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import spacy

ROOT = Path(__file__).parents[1]
Kill = Callable[[subprocess.Popen], None]


def train(texts: Path, output: Path, options: list[str], kill: Kill = lambda run: None) -> int:
    """Trains for 30 iterations at most. RETURNS (int): The exit code, negative for one that was killed.

    kill (Callable): Given the process once it runs.
    """
    paths = [f"--paths.{part}={texts}" for part in ("train", "dev")]
    # All iterations are done, whatever the scores say
    steps = ["--training.patience=7", "--training.optimizer.iterations_per_step=5"]
    steps += ["--training.optimizer.max_iterations=30", "--training.optimizer.tolerance=0"]
    command = [sys.executable, "-m", "spacy", "crf", "train", str(ROOT / "configs" / "crf_ner_large.cfg")]
    with (output.parent / f"{output.name}.txt").open("a") as told:
        run = subprocess.Popen(
            [*command, "--output", str(output), *options, *steps, *paths], stdout=told, stderr=subprocess.STDOUT
        )
        try:
            kill(run)
            return run.wait()
        finally:
            run.kill()
            run.wait()


def weights(output: Path) -> bytes:
    """What training left in the end."""
    return spacy.load(output / "model-last").get_pipe("crf_ner").training.frame().weights().tobytes()


def after(seconds: float, killed: list[int]) -> Kill:
    """Kills the main process, if it is there still, and enters it in a list."""

    def kill(run: subprocess.Popen) -> None:
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            run.kill()
            killed.append(run.pid)

    return kill


def worker_after(seconds: float, killed: list[int]) -> Kill:
    """Kills one of the workers, the first that there is then, and enters it in a list."""

    def kill(run: subprocess.Popen) -> None:
        time.sleep(seconds)
        while run.poll() is None and not killed:
            for pid in _workers(str(run.pid)):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                break
            time.sleep(0.01)

    return kill


def _workers(pid: str) -> list[int]:
    """Processes below one, of ours or actors of Ray, that do a part of the work."""
    found = []
    for child in _below(pid):
        try:
            said = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if b"spawn_main" in said or said.startswith(b"ray::_Actor"):
            found.append(int(child))
    return found


def _below(pid: str) -> Iterator[str]:
    try:
        children = [name for task in Path(f"/proc/{pid}/task").iterdir() for name in _children(task)]
    except OSError:
        return
    for child in children:
        yield child
        yield from _below(child)


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []
