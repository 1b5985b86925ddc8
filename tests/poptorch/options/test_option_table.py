"""The option table: nothing is missing, and it tells what is honoured and what is not."""

import inspect
import json
from pathlib import Path

import pytest
import torch

from poptorch import enums
from poptorch.options import Options, OptionsDict, TensorLocationSettings, _table

API = json.loads(Path(__file__).parents[1].joinpath("option_api.json").read_text())
ROOT = Path(__file__).parents[3]
FRESH = Options()
OBJECTS = {
    "OptionsDict": OptionsDict(),
    "Options": FRESH,
    "TensorLocationSettings": TensorLocationSettings(),
    **{f"Options.{name}": value for name, value in FRESH._namespaces.items()},
}


def parameters(method):
    """Parameter names with their defaults, written as in option_api.json."""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        marks.get(p.kind, "") + p.name + ("" if p.default is p.empty else f"={p.default!r}")
        for p in inspect.signature(method).parameters.values()
    ]


# --- nothing is missing


@pytest.mark.parametrize("namespace", sorted(API["namespaces"]))
def test_methods_properties_and_values_are_those_of_the_original(namespace):
    facts, found = API["namespaces"][namespace], OBJECTS[namespace]
    methods = facts["methods"]
    assert {name: parameters(getattr(found, name)) for name in methods} == methods
    assert {name: getattr(found, name) for name in facts["values"]} == facts["values"]
    assert all(hasattr(found, name) for name in facts["properties"])


def test_every_setter_has_a_row():
    rows = {(row.namespace, row.setter) for row in _table.TABLE}
    setters = {
        (namespace.removeprefix("Options."), name)
        for namespace, facts in API["namespaces"].items()
        if namespace != "OptionsDict"
        for name in facts["methods"]
        if name not in ("toDict", "defaultOutputMode", "checkIsFrozen")
    }
    assert setters <= rows


def test_every_popart_key_has_a_row_of_its_type():
    kinds = {"bool": True, "int": 1, "float": 0.5, "str": "x", "list_or_dict": ["x"]}
    options = Options()
    for key, kind in API["popart_keys"].items():
        options._Popart.set(key, kinds[kind])
    options._Popart.check_keys()


def test_rows_are_unique_and_explained():
    keys = [(row.store, row.name) for row in _table.TABLE]
    assert len(keys) == len(set(keys))
    assert all(row.note and row.when in ("compile", "run") for row in _table.TABLE)
    assert {row.namespace for row in _table.TABLE} == set(_table.NAMESPACES)


# --- what is and what is not honoured


@pytest.mark.parametrize(
    "change",
    [
        lambda o: o._Popart.set("accumulationFactor", 4),
        lambda o: o._Popart.set("accumulationAndReplicationReductionType", 0),
    ],
)
def test_what_would_change_results_is_unsupported(change):
    options = Options()
    change(options)
    ((row, value),) = _table.unsupported(options)
    assert row.status is _table.Status.REJECTED
    assert value == _table.value_of(options, row)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda o: o.syncPattern(enums.SyncPattern.SinglePipeline), "sync_pattern"),
        (lambda o: o.useIpuId(1), "ipu_id"),
        (lambda o: o.Precision.setPartialsType(torch.half), "partialsTypeMatMuls"),
        (lambda o: o.TensorLocations.numIOTiles(32), "num_io_tiles"),
        (lambda o: o._Popart.set("outlineThreshold", 1.0), "outlineThreshold"),
    ],
)  # fmt: skip
def test_advice_is_without_effect(change, name):
    options = Options()
    change(options)
    assert _table.unsupported(options) == []
    assert name in [row.name for row, _ in _table.without_effect(options)]


def test_defaults_and_honoured_options_are_in_neither_list():
    options = Options().deviceIterations(4).randomSeed(1).outputMode(enums.OutputMode.All)
    options.enableSyntheticData(True).logCycleCount(True).enableProfiling("reports")
    options.disableModuleNamescope().anchorTensor("g", "Gradient___w")
    options.Precision.enableStochasticRounding(False)
    assert _table.unsupported(options) == []
    assert _table.without_effect(options) == []
