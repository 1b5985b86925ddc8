"""The whole configuration, how Hydra knows it, and the presets by name.

    cosmictagger run.id=first                                   the preset `config`
    cosmictagger --config-name a21 run.id=second data=real      another preset, one group changed

A preset is what the published application keeps in a YAML file. Two things are left out of them on
purpose: the device, which follows the machine unless it is named, and `distributed`.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cosmictagger.config.data import DATA
from cosmictagger.config.framework import FRAMEWORKS
from cosmictagger.config.mode import MODES
from cosmictagger.config.network import NETWORKS, Network
from cosmictagger.config.run import Run
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
