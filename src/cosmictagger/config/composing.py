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
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
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

_FREE = "framework.environment_variables."  # the one place for names of one's own
_SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def composed(preset: str, overrides: Sequence[str]) -> Config:
    """Return the configuration of a preset with command-line overrides.

    Args:
        preset: one of ``PRESETS``.
        overrides: like ``data=real`` or ``run.id=first``; a ``+`` before them changes nothing.
    """
    if preset not in PRESETS:
        raise ConfigError(
            f"--config-name {preset} was asked for; presets are {', '.join(PRESETS)}."
            f"{_nearest(preset, PRESETS)}"
        )
    pairs = [(text, *_parsed(text)) for text in overrides]
    chosen = {**_BASE, **PRESETS[preset]["groups"]}
    for text, key, value in pairs:
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
    if not equals or not key or key.startswith("~") or "${" in value:
        raise ConfigError(f"{text} cannot be read as KEY=VALUE.")
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return key, value


def _set(config: Config, text: str, key: str, value: str) -> None:
    if key.startswith(_FREE):
        config.framework.environment_variables[key.removeprefix(_FREE)] = value
        return
    keys = list(leaves(config))
    if key not in keys:
        raise ConfigError(f"{text} was asked for, but there is no key {key}.{_nearest(key, keys)}")
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
        kind = getattr(hint, "__name__", hint)
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
