"""A component is saved in one file: a header with a checksum, then compressed msgpack. Loading never runs code."""

import io
from collections.abc import Iterator
from configparser import Error as ConfigParserError
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Optional

from thinc.api import Config, Model
from thinc.util import convert_recursive, is_xp_array

from ..checks import of_config
from ..errors import Errors, Warnings, announcements, shown
from ..kernels.compiling import PREDICTION
from ..models.resources import ListedFeatures, shared_lists
from ..models.sparse import prune
from ..types import Settings
from ..whole_files import FileFormat, packed, packed_bytes, seal_into, unpacked, unpacking, unseal, whole
from .pipe import LearningPipe

_LEARNED = "learned_texts"  # the saved setting with the texts that the component has learned from
FORMAT = FileFormat("a model", b"spacy_crf\n", 4)
FILE_NAME = "model"
# A file in the folder of a pipeline while commands replace the files in it one by one: some are new, some are old
REPLACING = ".replacing"
# Settings that decide which labels texts get. If a config has others than the saved model, the config counts, with a warning
_DECIDE = ("decode", "min_prob", "threshold", "max_positive")


def unpack(data: bytes, source: str, component: str) -> tuple[Settings, Settings, Optional[bytes]]:
    """Unpack saved data, after checking all of it.

    data (bytes): The saved component.
    source (str): Where the data comes from, for messages.
    component (str): The name of the class of the component that loads the data.
    RETURNS (tuple): The settings, the argument of `thinc.Model.from_dict`, and a packed first stage or None.
    RAISES (ValueError): CRF501, CRF502 or CRF508 for other or damaged data, CRF504 for data of another class.
    """
    packed_content = unseal(FORMAT, data, source)
    try:
        content = unpacked(packed_content)
        settings = dict(content["settings"])
        model = unpacked(content["model"])
        saved_component = content["component"]
    except Exception as error:  # msgpack may raise any error
        raise ValueError(Errors.CRF508.format(source=source, reason=reason_of(error))) from error
    if not isinstance(saved_component, str) or saved_component != component:
        raise ValueError(Errors.CRF504.format(source=source, saved=saved_component, component=component))
    return settings, model, content.get("first_stage")


def reason_of(error: Exception) -> str:
    """Text of an error without its full stop, for use within a message."""
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return text.rstrip(".")


def load_model(model: Model, saved: Settings, n_states: int) -> None:
    """Check saved data, and load it into a model. Callers restore the model after errors, see `unchanged_by_errors`.

    saved (Settings): The argument of `thinc.Model.from_dict`.
    n_states (int): Number of states of the component.
    RAISES (ValueError): CRF510 for a setting that contradicts the saved model; any error for data that no model has saved.
    """
    nodes = list(model.walk())
    n_parts = 1 + len(model.layers)
    n_states_of = {model.id: n_states}  # by node; columns, where a layer has others than states
    saved_names = [info["name"] for info in saved["nodes"][:n_parts]]
    names = [part.name for part in nodes[:n_parts]]
    if saved_names != names:
        raise ValueError(Errors.CRF510.format(setting="model", saved=" > ".join(saved_names), ours=" > ".join(names)))
    for part, info, attrs, params in zip(nodes, saved["nodes"], saved["attrs"], saved["params"]):
        info["refs"] = {}  # the config determines them
        if {*params} != {*part.param_names} or {*info["dims"]} != {*part.dim_names}:
            raise ValueError(Errors.CRF510.format(setting=part.name, saved=[*params], ours=[*part.param_names]))
        n_columns = n_states_of[part.id]
        if "node" in part.attrs:
            _keep_learned(part, attrs, n_columns)
            n_columns = part.attrs["node"].columns(n_columns)  # layers may have further columns beside those of states
        n_states_of.update({layer.id: n_columns for layer in part.layers})
        for attr, value in attrs.items():
            if not isinstance(part.attrs.get(attr), ListedFeatures):
                unpacked(value)  # checks the size, since thinc unpacks it without a limit
    with shared_lists():
        model.from_dict(saved)
    for part in nodes:
        if "node" in part.attrs and model.has_dim("nO"):
            part.attrs["node"].check(part, n_states_of[part.id])


def _keep_learned(part: Model, attrs: dict[str, bytes], n_states: int) -> None:
    """Remove all but learned attributes from the saved attributes (`attrs`) of a node, after checking them.

    RAISES (ValueError): CRF510 for a setting that gives the weights another meaning; any error for learned attributes that do not
        fit the node.
    """
    node = part.attrs["node"]
    for setting in node.traits.meaning:
        saved = unpacked(attrs[setting])
        if saved != part.attrs[setting]:
            raise ValueError(Errors.CRF510.format(setting=setting, saved=saved, ours=part.attrs[setting]))
    for name in set(attrs) - set(node.traits.learned):
        del attrs[name]
    node.expect(part, n_states, attrs)


def made_training(pipe: LearningPipe) -> Any:
    """The `Training` of a component (`pipe`) that has learned or was asked how it learns; None before."""
    return pipe.__dict__.get("training")


@contextmanager
def unchanged_by_errors(pipe: LearningPipe) -> Iterator[None]:
    """Restore a component (`pipe`) after an error in this context: its settings, model, pending gradients, and first stage."""
    cfg = {name: copy(value) for name, value in pipe.cfg.items()}
    owners = [owner for owner in (pipe, made_training(pipe)) if owner is not None]
    attributes = [(owner.__dict__, dict(owner.__dict__)) for owner in owners]  # as they are, and as they were
    nodes = []
    for part in pipe.model.walk():
        params = {name: (part.maybe_get_param(name), part.maybe_get_grad(name)) for name in part.param_names}
        dims = {name: part.maybe_get_dim(name) for name in part.dim_names}
        nodes.append((part, part.name, params, dims, dict(part.attrs)))
    try:
        with nullcontext() if pipe.first_stage is None else pipe.first_stage.unchanged_by_errors():
            yield
    except BaseException:
        for part, name, params, dims, attrs in nodes:
            part.name = name
            for param in part.param_names:
                part.set_param(param, None)  # thinc changes no dimension of a layer that has parameters
            for dim, size in dims.items():
                part.set_dim(dim, size, force=True)
            for param, (values, gradient) in params.items():
                part.set_param(param, values)
                if values is not None and part.has_grad(param):
                    part.set_grad(param, part.ops.alloc(values.shape) if gradient is None else gradient)
            part.attrs.clear()
            part.attrs.update(attrs)
        pipe.cfg = cfg
        for current, before in attributes:
            current.clear()
            current.update(before)
        raise


def parameters(model: Model) -> list[tuple[Model, str]]:
    """The nodes of a model with the names of their parameters."""
    return [(part, name) for part in model.walk() for name in part.param_names if part.has_param(name)]


def zero_gradients(model: Model) -> None:
    """Set pending gradients of a model to 0."""
    for part in model.walk():
        for name in part.grad_names:
            part.set_grad(name, part.ops.alloc(part.get_param(name).shape))


def to_bytes(pipe: LearningPipe) -> bytes:
    """The saved form of a component (`pipe`), see `LearningPipe.to_bytes`."""
    file = io.BytesIO()
    _save(pipe, file)
    return file.getvalue()


def to_disk(pipe: LearningPipe, path: Path) -> None:
    """Save a component (`pipe`) to the folder `path`, see `LearningPipe.to_disk`."""
    with whole(path / FILE_NAME) as file:
        _save(pipe, file)
    (path.parent / REPLACING).unlink(missing_ok=True)  # spaCy writes all files of the pipeline anew


def _save(pipe: LearningPipe, file: BinaryIO) -> None:
    """Write a component (`pipe`) to a file.

    RAISES (ValueError): CRF413 if a weight is not a finite number.
    """
    pipe._validate_serialization_attrs()
    for part, name in parameters(pipe.model):
        if not part.ops.xp.isfinite(part.get_param(name)).all():
            raise ValueError(Errors.CRF413.format(name=pipe.name, param=name, node=part.name))
    model = pipe.model
    training = made_training(pipe)
    if training is not None and training.prunes:
        model, n_weights, n_features = prune(model)
        text = "%s: %d weights that are zero and %d features without any other are left out of the saved model"
        announcements.info(text, pipe.name, n_weights, n_features)
    first_stage = {} if pipe.first_stage is None else {"first_stage": pipe.first_stage.component.to_bytes()}
    # Lists that several nodes read are saved once
    with shared_lists():
        nodes = convert_recursive(is_xp_array, partial(model.ops.to_numpy, byte_order="<"), model.to_dict())
    learned = pipe.learned_texts if training is None else training.learned.packed()
    settings = {**pipe._settings(), _LEARNED: learned}
    head = {"component": type(pipe).__name__, "settings": settings, **first_stage, "model": b""}
    # The model comes last, in place of the empty value, and is never in memory as a whole
    *parts, _ = packed(head)
    seal_into(file, FORMAT, chain(parts, packed_bytes([*packed(nodes)])))


def from_disk(pipe: LearningPipe, path: Path) -> None:
    """Load a component (`pipe`) from the folder `path`, see `LearningPipe.from_disk`."""
    file = path / FILE_NAME
    if (path.parent / REPLACING).exists():
        raise ValueError(Errors.CRF927.format(path=path.parent))
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValueError(Errors.CRF701.format(place=file, reason=error)) from error
    saved = load(pipe, data, str(file))
    _compare(pipe, saved, path)


def _compare(pipe: LearningPipe, saved: Settings, folder: Path) -> None:
    """Warn if settings that decide which labels texts get differ in the config on the disk and in the saved component: the config
    was edited, or a process was killed when it had saved the config and not the component. Settings given to `spacy.load` do not
    count.

    saved (Settings): The settings in the saved component.
    folder (Path): The folder of the component in the pipeline's folder.
    """
    config = folder.parent / "config.cfg"
    if not config.is_file():
        return
    try:
        components = Config().from_disk(config, interpolate=False).get("components", {})
    except (ValueError, ConfigParserError):  # a component is loaded alone where spaCy can't load its pipeline
        return
    in_config = components.get(folder.name, {})
    differences = []
    for name in _DECIDE:
        value = of_config(in_config.get(name))
        saved_value = saved.get(name)
        # Variables are compared with nothing: spaCy fills them in only when it loads the pipeline
        is_variable = isinstance(value, str) and "${" in value
        if None not in (value, saved_value) and not is_variable and value != saved_value:
            differences.append(f"{name} = {shown(value)} (saved: {shown(saved_value)})")
    if differences:
        pipe.warn(Warnings.CRFW925, path=config, folder=str(config.parent), other=", ".join(differences))


def load(pipe: LearningPipe, data: bytes, source: str) -> Settings:
    """Load a saved component. After an error the component is unchanged.

    pipe (LearningPipe): The component to load into.
    data (bytes): The saved component, from `to_bytes` or a file.
    source (str): Where the data comes from, for messages.
    RETURNS (Settings): The settings with which the component was saved.
    RAISES (ValueError): CRF505, with the reason, if the data does not fit the component; errors of `unpack`.
    """
    with unpacking(data):
        settings, model, first = unpack(data, source, type(pipe).__name__)
        try:
            with unchanged_by_errors(pipe):
                pipe._take_settings(settings)
                pipe._labels_changed()
                load_model(pipe.model, model, pipe.decoding.n_states)
                zero_gradients(pipe.model)  # they belong to the earlier weights
                if (first is None) != (pipe.first_stage is None):
                    saved, ours = [None, "a block"] if first is None else ["a block", None]
                    raise ValueError(Errors.CRF510.format(setting="second_stage", saved=saved, ours=ours))
                if first is not None:
                    pipe.first_stage.load(first)
                pipe.announce_kernels(PREDICTION)
                pipe.warned.add(Warnings.CRFW603)  # training has warned of it
        except Exception as error:  # a file may contain anything, so any error may occur
            raise ValueError(Errors.CRF505.format(source=source, name=pipe.name, reason=reason_of(error))) from error
    pipe.learned_texts = settings.get(_LEARNED)
    pipe.is_loaded = True
    training = made_training(pipe)
    if training is not None:
        training.begin()
        training.resume()
    return settings
