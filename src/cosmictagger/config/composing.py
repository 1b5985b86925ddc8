"""The whole configuration, how Hydra knows it, and the presets by name.

    cosmictagger run.id=first                                   the preset `config`
    cosmictagger --config-name a21 run.id=second data=real      another preset, one group changed

A preset is what the published application keeps in a YAML file. Two things are left out of them on
purpose: the device, which follows the machine unless it is named, and `distributed`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cosmictagger.config.keys import DATA, FRAMEWORKS, MODES, Run
from cosmictagger.config.network import NETWORKS, Network
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
"""The network of a run that names none: it trains in minutes on two cores.

Residual, because without that it took cosmic muons alone in its first hundreds of steps.
"""


@dataclass
class Config:
    """Every key there is. ``mode``, ``data`` and ``framework`` depend on the group chosen."""

    run: Run = field(default_factory=Run)
    mode: Any = None
    data: Any = None
    framework: Any = None
    network: Network = field(default_factory=Network)
    output_dir: str = "output/${framework.name}/${network.name}/${run.id}/"


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
"""The presets: which group of each kind, and what differs from that group's defaults."""


def network_choices() -> dict[str, Mapping[str, Any]]:
    """Return every choice of ``network=``, and what it has different from ``Network()``."""
    return {"small": SMALL, **NETWORKS}


@functools.cache
def register() -> None:
    """Make schema, groups and presets known to Hydra; may be called again."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, choices in (("mode", MODES), ("data", DATA), ("framework", FRAMEWORKS)):
        for name, kind in choices.items():
            store.store(group=group, name=name, node=kind)
    for name, changes in network_choices().items():
        store.store(group="network", name=name, node=OmegaConf.structured(Network(**changes)))
    for name, preset in PRESETS.items():
        changes = {key: value for key, value in preset.items() if key != "groups"}
        groups = [{group: choice} for group, choice in {**_BASE, **preset["groups"]}.items()]
        store.store(name=name, node={"defaults": ["schema", *groups, "_self_"], **changes})


def typed(composed: DictConfig) -> Config:
    """Return the dataclasses of a configuration that Hydra has composed."""
    if OmegaConf.is_missing(composed.run, "id"):
        raise ConfigError(
            "run.id is missing. Give this run a name, for example: cosmictagger run.id=first"
        )
    try:
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise ConfigError(f"The configuration cannot be read: {error}") from None
    assert isinstance(config, Config)
    return config


_FREE = "framework.environment_variables"  # the one place for names of one's own


def composed(preset: str, overrides: Sequence[str]) -> Config:
    """Return the configuration of a preset with changes.

    Args:
        preset: one of ``PRESETS``.
        overrides: like ``data=real`` or ``run.id=first``, in the grammar of Hydra.
    """
    check_preset(preset)
    for sentence in _choices(overrides):
        raise ConfigError(sentence)
    overrides = as_typed(overrides)
    try:
        raw = _compose(preset, overrides)
        # Hydra takes a new key from anybody who writes a + before it, and nobody would read it.
        if any(each.is_add() or each.is_force_add() for _, each in _parsed(overrides)):
            for sentence in _keys(preset, overrides):
                raise ConfigError(sentence)
        return typed(raw)
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_explained(preset, overrides, error)) from None


def check_preset(name: str) -> None:
    """Refuse an unknown ``--config-name``."""
    if name not in PRESETS:
        raise ConfigError(
            f"--config-name {name} was asked for; presets are {', '.join(PRESETS)}."
            f"{_nearest(name, PRESETS)}"
        )


def as_typed(overrides: Sequence[str]) -> list[str]:
    """Quote values of keys that take text where Hydra would read numbers.

    To Hydra ``run.id=12e4567`` is infinite, and ``2024_11_28`` the number 20241128.
    """
    return [_quoted(text, override) for text, override in _parsed(overrides)]


def _quoted(text: str, override: Override) -> str:
    name = override.key_or_group
    if name not in _text_keys() and not name.startswith(f"{_FREE}."):
        return text
    value, (key, _, written) = override.value(), text.partition("=")
    is_sweep = isinstance(value, ChoiceSweep)
    values = value.list if is_sweep else [value]
    parts = written.split(",") if is_sweep else [written]
    if len(parts) != len(values):  # commas inside of quotes, or choice(...)
        return text
    pairs = zip(parts, values, strict=True)
    quoted = [f"'{p.strip()}'" if isinstance(v, bool | int | float) else p for p, v in pairs]
    return f"{key}={','.join(quoted)}"


@functools.cache
def _text_keys() -> frozenset[str]:
    """Keys whose values are text, in any choice of the groups."""
    groups = (("mode.", MODES), ("data.", DATA), ("framework.", FRAMEWORKS))
    choices = [(prefix, kind) for prefix, kinds in groups for kind in kinds.values()]
    return frozenset(
        key for prefix, kind in [("", Config), *choices] for key in _texts(kind, prefix)
    )


def _texts(kind: Any, prefix: str) -> Iterator[str]:
    for name, hint in typing.get_type_hints(kind).items():
        if hint is str:
            yield f"{prefix}{name}"
        elif dataclasses.is_dataclass(hint):
            yield from _texts(hint, f"{prefix}{name}.")


def _compose(preset: str, overrides: Sequence[str]) -> DictConfig:
    register()
    # A caller that uses Hydra itself keeps its state.
    before, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize(version_base="1.3", config_path=None):
            return compose(preset, list(overrides))
    finally:
        GlobalHydra.instance().hydra = before


def _explained(preset: str, overrides: Sequence[str], error: Exception) -> str:
    """Return what is wrong with the first override that is wrong."""
    for sentence in _keys(preset, overrides):
        return sentence
    message = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"The configuration cannot be read: {message}"


def _parsed(overrides: Sequence[str]) -> list[tuple[str, Override]]:
    parser, overrides_by_text = OverridesParser.create(), []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException:
            override = None
        if override is None or not override.key_or_group:
            raise ConfigError(
                f"{text} cannot be read as KEY=VALUE. Put values with blanks, commas or brackets "
                "into two pairs of quotes: \"KEY='VALUE'\"."
            )
        overrides_by_text.append((text, override))
    return overrides_by_text


def _groups() -> dict[str, list[str]]:
    return {
        "mode": list(MODES),
        "data": list(DATA),
        "framework": list(FRAMEWORKS),
        "network": list(network_choices()),
    }


def _choices(overrides: Sequence[str]) -> Iterator[str]:
    """Yield a message for each override of a group that is not one of its choices."""
    groups = _groups()
    for text, override in _parsed(overrides):
        choices = groups.get(override.key_or_group)
        if choices is None:
            continue
        group, choice = override.key_or_group, str(override.value())
        if choice not in choices:
            near = _nearest(choice, choices)
            yield f"{text} was asked for; choices are {', '.join(choices)}.{near}"
        elif override.type is not OverrideType.CHANGE or override.package:
            yield f"{text} was asked for, but a group can only be chosen. Write {group}={choice}."


def _keys(preset: str, overrides: Sequence[str]) -> Iterator[str]:
    """Yield overrides whose key does not exist, or whose value does not fit, one after another."""
    groups, parsed = _groups(), _parsed(overrides)
    chosen = [text for text, override in parsed if override.key_or_group in groups]
    config = _compose(preset, chosen)
    keys = list(_leaves(config))
    for text, override in parsed:
        key = override.key_or_group
        if key in groups or key.startswith(("hydra.", f"{_FREE}.")):
            continue
        if key not in keys:
            yield f"{text} was asked for, but there is no key {key}.{_nearest(key, keys)}"
        elif not override.is_delete():
            try:
                OmegaConf.update(config, key, override.value())
            except OmegaConfBaseException as error:
                yield f"{text} was asked for: {str(error).splitlines()[0]}."


def _leaves(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for name in config:
        value: Any = config._get_node(name)
        key = f"{prefix}{name}"
        if isinstance(value, DictConfig):
            yield from _leaves(value, f"{key}.")
        yield key


def _nearest(name: str, candidates: Any) -> str:
    matches = difflib.get_close_matches(name, list(candidates), n=2, cutoff=0.6)
    last = name.rsplit(".", 1)[-1]
    matches += [key for key in candidates if key.rsplit(".", 1)[-1] == last and key not in matches]
    if not matches:
        return " See cosmictagger --help."
    return f" Did you mean {' or '.join(matches[:3])}?"
