"""The guide for physicists names every key with its default, and its code runs."""

import dataclasses
import enum
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from cosmictagger.config.composing import PRESETS
from cosmictagger.config.keys import Generated, Inference, Real, Run, Torch, Train
from cosmictagger.config.network import NETWORKS, Network
from cosmictagger.results.predictions import predictions_writer, scored_event, scores_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cosmictagger.md").read_text()

# Set by a group, or without effect here: naming them would only take room.
UNSAID = {
    "name",
    "synthetic",
    "run.distributed",
    "run.horovod_num_groups",
    "run.broadcast_buffers",
    "framework.distributed_mode",
    "framework.environment_variables",
    "network.data_format",
}
SECTIONS = {
    "run": (Run,),
    "mode": (Train, Inference),
    "data": (Real, Generated),
    "framework": (Torch,),
    "network": (Network,),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_named(section):
    for kind in SECTIONS[section]:
        for field in dataclasses.fields(kind):
            key = f"{section}.{field.name}"
            if dataclasses.is_dataclass(field.default_factory):
                continue  # test_config looks at the keys of sections
            assert {key, field.name} & UNSAID or f"`{key}`" in PAGE, f"{key} is not in the guide"


def test_defaults_are_those_of_the_program():
    configuration, _, _ = PAGE.partition("## Which version is followed")
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", configuration, re.M)
    checked = 0
    for keys, defaults in rows:
        names = re.findall(r"`([a-z]+)\.(\w+)`", keys)
        values = [part.strip() for part in defaults.split(",")]
        for (section, name), shown in zip(names, values, strict=False):
            if section not in SECTIONS or len(values) != len(names) or ";" in shown:
                continue
            kinds = [kind for kind in SECTIONS[section] if name in kind.__dataclass_fields__]
            default = kinds[0].__dataclass_fields__[name].default
            known = default.name if isinstance(default, enum.Enum) else str(default)
            if shown in ("the cache", "the machine's", "the run's own", "none: give one"):
                assert default in ("", None, "???")
            else:
                assert shown == known, f"{section}.{name} is {known}, the guide says {shown}"
            checked += 1
    assert checked > 30


def test_networks_and_presets_are_named():
    for name in (*NETWORKS, *PRESETS, "small"):
        assert f"`{name}`" in PAGE


def test_reading_predictions_back(tmp_path, monkeypatch, capsys):
    with predictions_writer(tmp_path / "output/torch/small/first", (4, 6)) as writer:
        scores = [scores_of(torch.tensor([0.0, 0, 5])[:, None, None].expand(3, 4, 6))] * 3
        image = np.eye(6, dtype=np.float32)[None, :4].repeat(3, 0)
        writer.write(scored_event(image, scores, (1, 2, 3)))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 1
    exec(compile(blocks[0], "docs/cosmictagger.md", "exec"), {})
    assert capsys.readouterr().out == (
        "1 events of (4, 6) pixels; ids [1 2 3]\n4 of 4 pixels look like a neutrino\n"
    )


@pytest.mark.parametrize("mode", ["CPU", "IPU", "RDU"])
def test_the_table_of_files_is_what_runs_leave(run, plane_net, quick_pictures, mode, monkeypatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")  # which a run with a profile sets
    part = PAGE.split("## Files of a run")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", part, re.M)
    listed = {name: of for names, of in rows for name in re.findall(r"`([^`]+)`", names)}
    left = []
    for more in (("run.iterations=2", "run.aux_iterations=1"), ("mode=inference",)):
        chosen = (*more, f"run.compute_mode={mode}", "run.saver=True", "run.profile=True")
        status, out = run(*chosen)
        assert status == 0
        left.append({path.name + "/" * path.is_dir() for path in out.iterdir()})
    foreign = {f"{other} mode" for other in ("IPU", "RDU") if other != mode}
    assert left[1] == {name for name, of in listed.items() if of not in foreign}
    assert "inference" not in {listed[name] for name in left[0]}
    assert "training" not in {listed[name] for name in left[1] - left[0]}
