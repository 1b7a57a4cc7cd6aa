"""A component is saved in one file: a header with a checksum, then compressed msgpack. Loading never runs code."""

import copyreg
import io
from collections.abc import Iterable, Iterator
from configparser import Error as ConfigParserError
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from itertools import chain
from pathlib import Path
from types import GeneratorType
from typing import Any, BinaryIO, Optional, Union

from thinc.api import Config, Model
from thinc.util import convert_recursive, is_xp_array

from ..checks import is_written, of_config
from ..errors import Errors, Warnings, announcements, shown
from ..kernels import announcing
from ..models.resources import ListedFeatures, shared_lists
from ..models.sparse import prune
from ..whole_files import FileFormat, packed, packed_bytes, seal_into, unpacked, unpacking, unseal, whole
from .labels import LabelPipe
from .learned_texts import LearnedTexts

_LEARNED = "learned_texts"  # what the saved settings call the texts that the component has learned from
_WHOLE = "model"  # what `exclude` calls the component's file
FORMAT = FileFormat("a model", b"spacy_crf\n", 4)
FILE_NAME = "model"
# A file in the folder of a pipeline while commands replace the files in it one by one: some are new, some are old
REPLACING = ".replacing"
# Settings that decide what texts get. The config has the last word, but not unnoticed if the model was saved with others
_DECIDE = ("decode", "min_prob", "threshold", "max_positive")


def unpack(data: bytes, source: str, component: str) -> tuple[dict[str, Any], dict[str, Any], Optional[bytes]]:
    """Unpack saved data, after checking all of it.

    RETURNS (tuple): The settings, the argument of `thinc.Model.from_dict`, and a packed first stage or None.
    RAISES (ValueError): CRF501 to CRF504, CRF508.
    """
    content = unseal(FORMAT, data, source)
    try:
        content = unpacked(content)
        settings, model, found = dict(content["settings"]), unpacked(content["model"]), content["component"]
    except Exception as error:  # msgpack may raise any error
        raise ValueError(Errors.CRF508.format(source=source, reason=reason_of(error))) from error
    if not isinstance(found, str) or found != component:
        raise ValueError(Errors.CRF504.format(source=source, saved=found, component=component))
    return settings, model, content.get("first_stage")


def reason_of(error: Exception) -> str:
    """Text of an error without its full stop, for use within a message."""
    return (str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}").rstrip(".")


def load_model(model: Model, saved: dict[str, Any], n_states: int) -> None:
    """Load saved data into a model, and check the model. Callers restore the model after errors, see `unchanged_by_errors`.

    RAISES (ValueError): CRF510 for a setting that contradicts the saved model; any error for data that no model has saved.
    """
    nodes, n_parts = list(model.walk()), 1 + len(model.layers)
    n_states_of = {model.id: n_states}
    names, ours = [info["name"] for info in saved["nodes"][:n_parts]], [node.name for node in nodes[:n_parts]]
    if names != ours:
        raise ValueError(Errors.CRF510.format(setting="model", saved=" > ".join(names), ours=" > ".join(ours)))
    for node, info, attrs, params in zip(nodes, saved["nodes"], saved["attrs"], saved["params"]):
        info["refs"] = {}  # the config determines them
        if {*params} != {*node.param_names} or {*info["dims"]} != {*node.dim_names}:
            raise ValueError(Errors.CRF510.format(setting=node.name, saved=[*params], ours=[*node.param_names]))
        if "role" in node.attrs:
            ours_of = node.attrs["role"]
            for setting in ours_of.meaning:
                found, ours = unpacked(attrs[setting]), node.attrs[setting]
                if found != ours:
                    raise ValueError(Errors.CRF510.format(setting=setting, saved=found, ours=ours))
            for name in set(attrs) - set(ours_of.learned):  # attributes that were not learned
                del attrs[name]
            ours_of.expect(node, n_states_of[node.id], attrs)
        of_layers = node.attrs["role"].columns(n_states_of[node.id]) if "role" in node.attrs else n_states_of[node.id]
        n_states_of.update({layer.id: of_layers for layer in node.layers})
        for attr, value in attrs.items():
            if not isinstance(node.attrs.get(attr), ListedFeatures):
                unpacked(value)  # checks the size, since thinc unpacks it without a limit
    with shared_lists():
        model.from_dict(saved)
    for node in nodes:
        if "role" in node.attrs and model.has_dim("nO"):
            node.attrs["role"].check(node, n_states_of[node.id])


@contextmanager
def unchanged_by_errors(pipe: LabelPipe) -> Iterator[None]:
    """Restore a component after an error: its settings, model, pending gradients, and first stage."""
    cfg = {name: copy(value) for name, value in pipe.cfg.items()}
    attributes = [(owner.__dict__, dict(owner.__dict__)) for owner in (pipe, pipe.training)]
    nodes = []
    for node in pipe.model.walk():
        params = {name: (node.maybe_get_param(name), node.maybe_get_grad(name)) for name in node.param_names}
        dims = {name: node.maybe_get_dim(name) for name in node.dim_names}
        nodes.append((node, node.name, params, dims, dict(node.attrs)))
    try:
        with nullcontext() if pipe.first_stage is None else pipe.first_stage.unchanged_by_errors():
            yield
    except BaseException:
        for node, name, params, dims, attrs in nodes:
            node.name = name
            for param in node.param_names:
                node.set_param(param, None)  # thinc changes no dimension of a layer that has parameters
            for dim, size in dims.items():
                node.set_dim(dim, size, force=True)
            for param, (values, gradient) in params.items():
                node.set_param(param, values)
                if values is not None and node.has_grad(param):
                    node.set_grad(param, node.ops.alloc(values.shape) if gradient is None else gradient)
            node.attrs.clear()
            node.attrs.update(attrs)
        pipe.cfg = cfg
        for current, before in attributes:
            current.clear()
            current.update(before)
        raise


def parameters(model: Model) -> list[tuple[Model, str]]:
    """The nodes of a model with the names of their parameters."""
    return [(node, name) for node in model.walk() for name in node.param_names if node.has_param(name)]


def forget_gradients(model: Model) -> None:
    """Set pending gradients to 0."""
    for node in model.walk():
        for name in node.grad_names:
            node.set_grad(name, node.ops.alloc(node.get_param(name).shape))


class SavingPipe(LabelPipe):
    """A component that can be saved, loaded, copied, and sent to other processes."""

    def __reduce__(self):
        """State for copies and other processes, where caches are made anew."""
        state = {name: getattr(self, name) for name in ("vocab", "name", "model", "cfg", "scorer")}
        state = {**state, **self.__dict__, "_compiled": None}
        schedules = getattr(self.optimizer, "schedules", {}).values()
        if any(isinstance(schedule, GeneratorType) for schedule in schedules):
            state["optimizer"] = partial(_refuse_step, self.name)
        make = copyreg.__newobj__  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
        return make, (type(self),), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._connect_stages()

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """RETURNS (bytes): Labels, settings and model together; empty if "model" is excluded.

        RAISES (ValueError): CRF413 if a weight is not finite.
        """
        file = io.BytesIO()
        if _WHOLE not in exclude:
            self._save(file)
        return file.getvalue()

    def _save(self, file: BinaryIO) -> None:
        self._validate_serialization_attrs()
        for node, name in parameters(self.model):
            if not node.ops.xp.isfinite(node.get_param(name)).all():
                raise ValueError(Errors.CRF413.format(name=self.name, param=name, node=node.name))
        model = self.model
        if self.training.prunes:
            model, n_weights, n_features = prune(model)
            text = "%s: %d weights that are zero and %d features without any other are left out of the saved model"
            announcements.info(text, self.name, n_weights, n_features)
        stage = {} if self.first_stage is None else {"first_stage": self.first_stage.component.to_bytes()}
        with shared_lists():
            nodes = convert_recursive(is_xp_array, partial(model.ops.to_numpy, byte_order="<"), model.to_dict())
        head = {"component": type(self).__name__, "settings": self._settings(), **stage, "model": b""}
        *parts, _ = packed(head)
        seal_into(file, FORMAT, chain(parts, packed_bytes([*packed(nodes)])))

    def _settings(self) -> dict[str, Any]:
        """Settings that are saved with the model."""
        return {**self.cfg, _LEARNED: self.training.learned.packed()}

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> "SavingPipe":
        """Load the result of `to_bytes`, unless "model" is excluded. After an error the component is unchanged.

        RAISES (ValueError): If the data is damaged or does not fit.
        """
        if _WHOLE not in exclude:
            self._load(bytes_data, "the bytes given to from_bytes")
        return self

    def to_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> None:
        """Save to a folder, unless "model" is excluded. An earlier model stays until the new one is complete."""
        if _WHOLE in exclude:
            return
        with whole(Path(path) / FILE_NAME) as file:
            self._save(file)
        (Path(path).parent / REPLACING).unlink(missing_ok=True)  # spaCy writes all files of the pipeline anew

    def from_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> "SavingPipe":
        """Load a folder that `to_disk` wrote, unless "model" is excluded. After an error the component is unchanged.

        Warns (CRFW925) if the config.cfg beside the folder has other settings of decoding than the component was saved with.

        RAISES (ValueError): If the file is missing, damaged or does not fit; CRF927 if a process was killed while it replaced the
            files of the pipeline.
        """
        if _WHOLE in exclude:
            return self
        file = Path(path) / FILE_NAME
        if (file.parent.parent / REPLACING).exists():
            raise ValueError(Errors.CRF927.format(path=file.parent.parent))
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ValueError(Errors.CRF701.format(place=file, reason=error)) from error
        saved = self._load(data, str(file))
        self._compare(saved, file.parent)
        return self

    def _compare(self, saved: dict[str, Any], folder: Path) -> None:
        """Warn if settings that decide were saved otherwise than the config on the disk has them: it was edited, or a process was
        killed when it had saved the config and not the component. Settings given to `spacy.load` do not count."""
        config = folder.parent / "config.cfg"
        if not config.is_file():
            return
        try:
            components = Config().from_disk(config, interpolate=False).get("components", {})
        except (ValueError, ConfigParserError):  # a component is loaded alone where spaCy can't load its pipeline
            return
        read = components.get(folder.name, {})
        other = []
        for name in _DECIDE:
            given = of_config(read.get(name))
            kept = saved.get(name)
            is_variable = isinstance(given, str) and "${" in given
            if None not in (given, kept) and not is_variable and given != kept:
                other.append(f"{name} = {shown(given)} (saved: {shown(kept)})")
        if other:
            self.warn(Warnings.CRFW925, path=config, folder=str(config.parent), other=", ".join(other))

    def _load(self, data: bytes, source: str) -> dict[str, Any]:
        """RETURNS (Dict[str, Any]): The settings with which the component was saved."""
        with unpacking(data):
            settings, model, first = unpack(data, source, type(self).__name__)
            try:
                with unchanged_by_errors(self):
                    self._take_settings(settings)
                    self._labels_changed()
                    load_model(self.model, model, self.decoding.n_states)
                    forget_gradients(self.model)  # they belong to the earlier weights
                    stages = [None if stage is None else "a block" for stage in (first, self.first_stage)]
                    if stages[0] != stages[1]:
                        raise ValueError(Errors.CRF510.format(setting="second_stage", saved=stages[0], ours=stages[1]))
                    if first is not None:
                        self.first_stage.load(first)
                    self.expect_kernels(announcing.PREDICTION)
                    self.told.add(Warnings.CRFW603)  # who trained it was warned
            except Exception as error:  # a file may contain anything, so any error may occur
                reason = reason_of(error)
                raise ValueError(Errors.CRF505.format(source=source, name=self.name, reason=reason)) from error
        self.training.begin()
        self.training.learned = LearnedTexts.unpacked(settings.get(_LEARNED))
        self.training.continue_training()
        return settings

    def _take_settings(self, saved: dict[str, Any]) -> None:
        """Take over the learned state of a saved component; the other settings come from the config.

        RAISES (ValueError): CRF510 for settings that would change the meaning of the weights.
        """
        for name in self.meaning:
            if not is_written(saved[name], self.cfg[name]):
                raise ValueError(Errors.CRF510.format(setting=name, saved=saved[name], ours=self.cfg[name]))
        known = {name: list(dict.fromkeys(saved.get(name, ()))) for name in ("labels", "left_out")}
        for label in (*known["labels"], *known["left_out"]):
            self.annotation.check_label(label)
        alike = {
            name: saved[name] for name, value in self.cfg.items() if name in saved and is_written(saved[name], value)
        }
        self.cfg = {**self.cfg, **alike, **known}


def _refuse_step(name: str, *args: Any, **kwargs: Any) -> None:
    """Stands for an optimizer that could not be copied."""
    raise ValueError(Errors.CRF507.format(name=name))
