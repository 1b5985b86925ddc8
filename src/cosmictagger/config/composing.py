"""Composes the configuration from presets, groups, and keys of a command line.

    cosmictagger run.id=first                                   the preset `config`
    cosmictagger --config-name a21 run.id=second data=real      another preset, one group changed

A preset is what the published application keeps in a YAML file. Two things are left out of them on
purpose: the device, which follows the machine unless it is named, and `distributed`.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosmictagger.config.keys import DATA, FRAMEWORKS, MODES, Run
from cosmictagger.config.network import NETWORKS, Network, member
from cosmictagger.errors import ConfigError

SMALL: dict[str, Any] = {
    "name": "small",
    "n_initial_filters": 8,
    "blocks_per_layer": 1,
    "blocks_deepest_layer": 1,
    "blocks_final": 0,
    "depth": 4,
    "filter_size_deepest": 3,
    "bottleneck_deepest": 64,
    "residual": True,
    "connections": "sum",
    "growth_rate": "multiplicative",
}
"""The default network, which trains in minutes on two cores.

Residual, because without that it took cosmic muons alone in its first hundreds of steps.
"""


@dataclass
class Config:
    """All keys of a configuration. ``mode``, ``data``, ``framework`` depend on the chosen group."""

    run: Run = field(default_factory=Run)
    mode: Any = None
    data: Any = None
    framework: Any = None
    network: Network = field(default_factory=Network)
    output_dir: str = ""

    def __post_init__(self) -> None:
        self.notes: list[str] = []  # which keys of version 2.1 were read as others, and how


_BASE = {"mode": "train", "framework": "torch"}
PRESETS: dict[str, dict[str, Any]] = {
    "config": {"groups": {"data": "generated", "network": "small"}},
    "a21": {"groups": {"data": "synthetic", "network": "a21"}, "data": {"downsample": 1}},
    "a21-deterministic": {
        "groups": {"data": "real", "network": "a21"},
        "data": {"downsample": 1, "seed": 12345},
        "framework": {"seed": 54321},
        "run": {"minibatch_size": 32, "iterations": 5000},
    },
    "polaris": {"groups": {"data": "real", "network": "polaris"}, "data": {"downsample": 0}},
    "SCC_21": {"groups": {"data": "real", "network": "scc21"}, "data": {"downsample": 0}},
    "uresnet2": {
        "groups": {"data": "real", "network": "uresnet2"},
        "data": {"downsample": 1},
        "run": {"iterations": 20000},
    },
    "sn-at": {
        "groups": {"data": "real", "network": "uresnet3d"},
        "data": {"downsample": 0},
        "network": {"depth": 7},
    },
}
"""Presets by name: a choice of each group, and overrides of the group's defaults."""


GROUPS: dict[str, dict[str, Callable[[], Any]]] = {
    "mode": MODES,
    "data": DATA,
    "framework": FRAMEWORKS,
    "network": {
        name: functools.partial(Network, **changes)
        for name, changes in {"small": SMALL, **NETWORKS}.items()
    },
}
"""Choices of each configuration group, and their classes."""

RENAMED: dict[str, str] = {
    "run.run_length": "run.epochs, or run.iterations with run.run_units=iteration",
    "run.val_iteration": "run.aux_iterations",
    "mode.optimizer.lr_schedule.peak_learning_rate": "mode.optimizer.learning_rate",
    "lr_schedule@mode.optimizer.lr_schedule": "mode.optimizer.lr_schedule.name",
    "data.paths.train": "data.file",
    "data.paths.val": "data.aux_file",
    "data.paths.test": "data.file",
    "run.compute_mode=CUDA": "run.compute_mode=GPU",
}
"""Keys and choices of version 2.1 of the original, and what they are read as."""

_UNITS = {"epoch": "run.epochs", "0": "run.epochs", "iteration": "run.iterations"}
_UNITS["1"] = _UNITS["iteration"]
_PATHS = "data.paths."
_FILES = ("train", "val", "test", "active")  # the last one is a list of the others
# The files of a mode, of which the first one has to be given.
_FILES_OF = {"train": ("train", "val"), "inference": ("test",), "iotest": ("train",)}
_TRANSFORMER = "it is a transformer, and networks here are UResNets, such as network=uresnet"
REFUSED: dict[str, str] = {
    "network=segformer": _TRANSFORMER,
    "network=cvt": _TRANSFORMER,
    "--config-name=segformer": _TRANSFORMER,
    "--config-name=cvt": _TRANSFORMER,
    **{
        f"mode.optimizer.name={name}": "it is not available; the nearest one is lamb, which also "
        "scales the update of each tensor"
        for name in ("lars", "5", "novograd", "7")
    },
}
"""Choices of version 2.1 of the original that are not available, and why."""

_NAMES_OF_GROUPS = ("mode.name", "data.name", "framework.name")  # other words for the choice
_FREE = "framework.environment_variables."  # the one place for names of one's own
_SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def composed(preset: str, overrides: Sequence[str]) -> Config:
    """Return the configuration of a preset with command-line overrides.

    Args:
        preset: one of ``PRESETS``.
        overrides: like ``data=real`` or ``run.id=first``; a ``+`` before them changes nothing.
    """
    _refuse("--config-name", preset)
    if preset not in PRESETS:
        raise ConfigError(
            f"--config-name {preset} was asked for; presets are {', '.join(PRESETS)}."
            f"{_nearest(preset, PRESETS)}"
        )
    pairs = [(text, *_parsed(text)) for text in overrides]
    chosen = {**_BASE, **PRESETS[preset]["groups"]}
    if any(key.startswith(_PATHS) for _, key, _ in pairs):
        chosen["data"] = "real"
    for text, key, value in pairs:
        _refuse(key, value)
        if key in GROUPS and value not in GROUPS[key]:
            choices = ", ".join(GROUPS[key])
            near = _nearest(value, GROUPS[key])
            raise ConfigError(f"{text} was asked for; choices are {choices}.{near}")
        if key in GROUPS:
            chosen[key] = value
    config = Config(**{group: GROUPS[group][choice]() for group, choice in chosen.items()})
    for section, changes in PRESETS[preset].items():
        for name, value in changes.items() if section != "groups" else ():
            setattr(getattr(config, section), name, value)
    pairs = _renamed(pairs, chosen["mode"], config.notes)
    keys = {key for _, key, _ in pairs}
    if "run.epochs" in keys and "run.iterations" not in keys:
        config.run.iterations = None  # that of the preset
    for text, key, value in pairs:
        if key not in GROUPS:
            _set(config, text, key, value)
    config.network.__post_init__()
    if not config.output_dir:
        names = config.framework.name, config.network.name, config.run.id
        config.output_dir = f"output/{'/'.join(names)}/"
    return config


def _parsed(text: str) -> tuple[str, str]:
    """Parse a ``key=value`` override; quotes around the value are removed."""
    key, equals, value = text.partition("=")
    key, value = key.lstrip("+"), value.strip()
    key = key.removesuffix(".name") if key in _NAMES_OF_GROUPS else key
    if not equals or not key or key.startswith("~") or "${" in value:
        raise ConfigError(f"{text} cannot be read as KEY=VALUE.")
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return key, value


def _refuse(key: str, value: str) -> None:
    why = REFUSED.get(f"{key}={value}")
    if why is not None:
        raise ConfigError(f"{key}={value} was asked for, but {why}.")


def _renamed(
    pairs: Sequence[tuple[str, str, str]], mode: str, notes: list[str]
) -> list[tuple[str, str, str]]:
    """Return overrides with the keys of this application in place of those of version 2.1.

    Args:
        pairs: text, key and value of each override.
        mode: that was chosen, which decides about files.
        notes: takes a sentence for each override that was read as another.
    """
    given = {key: value for _, key, value in pairs}
    units = given.get("run.run_units", "epoch")
    if units not in _UNITS or ("run.run_units" in given and "run.run_length" not in given):
        raise ConfigError(
            f"run.run_units={units} was asked for; it is epoch or iteration, and says what "
            "run.run_length=N counts. Here run.epochs=N and run.iterations=N say it in one."
        )
    skipped = {"run.run_units", *(_PATHS + name for name in _FILES if name not in _FILES_OF[mode])}
    result: list[tuple[str, str, str]] = []
    for text, key, value in pairs:
        new = RENAMED.get(f"{key}={value}") or RENAMED.get(key, key)
        new = _UNITS[units] if key == "run.run_length" else new
        if key.startswith(_PATHS):  # whatever data.data_directory is
            value = "" if value in ("", "null") else os.path.abspath(value)
        if "=" in new:
            new, _, value = new.partition("=")
        if key in skipped:
            continue
        older = next((given for given, taken, _ in result if taken == new), text)
        if older.partition("=")[0].lstrip("+") != text.partition("=")[0].lstrip("+"):
            raise ConfigError(f"{older} and {text} were asked for, two names of {new}. Give one.")
        if new != key or not text.endswith(value):
            notes.append(f"{text} is read as {new}={value}.")
        result.append((text, new, value))
    return result + _without_files(given, mode, notes)


def _without_files(
    given: Mapping[str, str], mode: str, notes: list[str]
) -> list[tuple[str, str, str]]:
    """Return the overrides for files that ``data.paths`` leaves out; raise if it is the first."""
    if not any(_PATHS + name in given for name in _FILES):
        return []
    if _PATHS + "active" in given:
        notes.append("data.paths.active has no effect: the mode decides which files are read.")
    main = _FILES_OF[mode][0]
    if _PATHS + main not in given and "data.file" not in given:
        raise ConfigError(
            f"mode={mode} reads data.paths.{main}, but only other files were named. Add "
            f"data.paths.{main}=FILE."
        )
    if mode != "train" or not {_PATHS + "val", "data.aux_file"}.isdisjoint(given):
        return []
    notes.append("There is no validation: name events for it with data.paths.val=FILE.")
    return [("data.aux_file=", "data.aux_file", "")]


def _set(config: Config, text: str, key: str, value: str) -> None:
    if key.startswith(_FREE):
        config.framework.environment_variables[key.removeprefix(_FREE)] = value
        return
    keys = list(leaves(config))
    if key not in keys:
        near = _nearest(key, [*keys, *RENAMED])
        where = f" with data={config.data.name.name}" if key.startswith("data.") else ""
        raise ConfigError(f"{text} was asked for, but there is no key {key}{where}.{near}")
    owner: Any = config
    *path, name = key.split(".")
    for part in path:
        owner = getattr(owner, part)
    hint = typing.get_type_hints(type(owner))[name]
    try:
        setattr(owner, name, _converted(hint, value, key))
    except (KeyError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        # Unions are written as such: from Python 3.14 on, they have a name, which is no type's.
        kind = hint if typing.get_args(hint) else hint.__name__
        raise ConfigError(f"{text} was asked for, but {key} takes a value of {kind}.") from None


def _converted(hint: Any, value: str, key: str) -> Any:
    kinds = typing.get_args(hint) or (hint,)
    if type(None) in kinds and value == "null":
        return None
    kind = kinds[0]
    if issubclass(kind, enum.Enum):
        return member(kind, value, key)
    return _SWITCH[value.lower()] if kind is bool else kind(value)


def leaves(owner: Any, prefix: str = "") -> Iterator[str]:
    """Yield the keys that a configuration has, such as ``run.minibatch_size``."""
    for each in dataclasses.fields(owner):
        value = getattr(owner, each.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{each.name}.")
        elif not isinstance(value, dict):
            yield f"{prefix}{each.name}"


def _nearest(name: str, candidates: Iterable[str]) -> str:
    known = list(candidates)
    matches = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    last = name.rsplit(".", 1)[-1]
    matches += [key for key in known if key.rsplit(".", 1)[-1] == last and key not in matches]
    if not matches:
        return " See cosmictagger --help."
    return f" Did you mean {' or '.join(matches[:3])}?"
