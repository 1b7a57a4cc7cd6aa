"""Which members of the plugin's classes the lab's systems override: ``python -m lab.tests.overridden``."""

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import ModuleType

import spacy_crf
import spacy_crf_lab

# Systems that take several files, by the beginnings of their names
SYSTEMS = {
    "ties": ("ties", "linked_texts"),
    "numbers": ("gaussian_", "number"),
    "variances of weights": ("laplace_propagation", "posterior"),
    "label graph": ("label_",),
    "pool": ("opinion_pool", "experts"),
    "output codes": ("output_codes", "bit_chains", "code_matrix"),
    "HMM": ("hmm", "counting", "word_counts", "baum_welch", "aggregation"),
    "kernels": ("kernel_", "dual_perceptron"),
    "trees": ("boosted_emissions", "tree"),
    "induction": ("feature_",),
    "MEMM": ("memm", "maxent"),
    "duals": ("dual", "smo", "cutting_plane", "simplex"),
    "scaling": ("iterative_scaling", "uses"),
}


def overridden() -> dict[tuple[str, str], set[str]]:
    """RETURNS (dict): By class of the plugin and member, the systems of the lab that override it, and "plugin" if a class of the
    plugin does."""
    found = defaultdict(set)
    for owned in _classes(spacy_crf) | _classes(spacy_crf_lab):
        by = _systems(owned)
        members = {*vars(owned), *vars(owned).get("__annotations__", {}), *_assigned(owned)}
        for member in members - _arguments(owned):
            first = None if member.startswith("__") or member == "_abc_impl" else _first_to_have(owned, member)
            if first is not None:
                found[first.__name__, member] |= by
    return {place: systems for place, systems in found.items() if systems != {"plugin"}}


def _assigned(owned: type) -> set[str]:
    """The attributes that methods of a class set, as constructors do."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owned)))
    attributes = [
        each for each in ast.walk(tree) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    ]
    return {each.attr for each in attributes if isinstance(each.value, ast.Name) and each.value.id == "self"}


def _arguments(owned: type) -> set[str]:
    """The arguments with which objects of a dataclass are made: its settings."""
    return {each.name for each in fields(owned) if each.init} if is_dataclass(owned) else set()


def _classes(package: ModuleType) -> set[type]:
    """The classes of a package, but for the commands."""
    found = set()
    for module in _modules(package):
        found |= {
            each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__
        }
    return found


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if info.name.split(".")[1] not in ("cli", "configs", "projects"):
            yield importlib.import_module(info.name)


def _systems(owned: type) -> set[str]:
    """The system of a class; of a class that only other systems inherit from, these."""
    heirs = {_system(each) for each in owned.__subclasses__() if each.__module__.startswith("spacy_crf")}
    return heirs if heirs and _system(owned) not in ("plugin", *SYSTEMS) else {_system(owned)}


def _system(owned: type) -> str:
    package, name = owned.__module__.split(".")[:2]
    if package == "spacy_crf":
        return "plugin"
    return next((system for system, begins in SYSTEMS.items() if name.startswith(begins)), name)


def _first_to_have(owned: type, member: str) -> "type | None":
    """The most general class of the plugin above a class that has a member; None for members of spaCy and thinc."""
    above = [each for each in owned.__mro__[1:] if each.__module__.startswith("spacy_crf.")]
    if any(member in vars(each) for each in owned.__mro__ if each.__module__.startswith(("spacy.", "thinc."))):
        return None
    having = [each for each in above if member in vars(each) or member in vars(each).get("__annotations__", {})]
    return having[-1] if having else None


if __name__ == "__main__":
    places = overridden()
    for (owner, member), systems in sorted(places.items()):
        print(f"{owner}.{member}", *sorted(systems), sep="  ")
    alone = [systems for systems in places.values() if "plugin" not in systems]
    print(
        len(places), "members;", len(alone), "by the lab alone;", sum(len(each) == 1 for each in alone), "by one system"
    )
