"""Checkpoints of the application: index, places and words; storage has tests of its own."""

import errno
import os
import re

import numpy as np
import pytest
import torch

from cosmictagger import checkpoints
from cosmictagger.checkpoints import Checkpoints, check_fits, load, locate, weights_hash
from cosmictagger.errors import CheckpointError, ConfigError


def content(step=1):
    return {"global_step": step, "state_dict": {"weight": torch.arange(4096.0) * step}}


def test_round_trip_index_and_five_kept(tmp_path):
    kept = Checkpoints(tmp_path)
    for step in range(1, 8):
        kept.save(step, content(step))
    assert (tmp_path / "checkpoint").read_text().splitlines() == [
        "latest: model-7.ckpt",
        *(f"{step}: model-{step}.ckpt" for step in (7, 6, 5, 4, 3)),
    ]
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == [
        f"model-{step}.ckpt" for step in range(3, 8)
    ]
    assert load(locate(tmp_path))["global_step"] == 7
    assert os.listdir(tmp_path).count("checkpoint") == 1
    assert not list(tmp_path.glob(".*"))


def test_a_location_is_a_file_a_folder_or_an_output_folder_with_or_without_slash(tmp_path):
    path = Checkpoints(tmp_path / "checkpoints").save(3, content())
    for location in (path, tmp_path, f"{tmp_path}/", f"{tmp_path}/checkpoints/"):
        assert locate(location) == path


def test_a_lost_index_is_made_up_from_the_names(tmp_path):
    kept = Checkpoints(tmp_path)
    for step in (9, 10):
        kept.save(step, content(step))
    (tmp_path / "checkpoint").unlink()
    assert locate(tmp_path).name == "model-10.ckpt"


def test_going_back_makes_the_new_one_the_latest(tmp_path):
    kept = Checkpoints(tmp_path)
    for step in (100, 200, 150):
        kept.save(step, content(step))
    assert locate(tmp_path).name == "model-150.ckpt"


@pytest.mark.parametrize(
    ("name", "what"), [("nowhere", "does not exist"), ("empty", "has no checkpoint")]
)
def test_missing_weights(tmp_path, name, what):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=f"{name} {what}"):
        locate(tmp_path / name)


def test_cut_in_half_names_it_and_the_older_one_that_is_whole(tmp_path):
    kept = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        kept.save(step, content(step))
    for step in (2, 3):
        path = tmp_path / f"model-{step}.ckpt"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"model-3.ckpt cannot be read: .*not complete") as e:
        load(locate(tmp_path))
    assert f"mode.weights_location={tmp_path / 'model-1.ckpt'}" in str(e.value)


def test_an_index_that_cannot_be_read_is_no_lost_one(tmp_path):
    Checkpoints(tmp_path).save(1, content())
    (tmp_path / "checkpoint").write_bytes(b"\xff\xfe")
    assert locate(tmp_path).name == "model-1.ckpt"
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(CheckpointError, match=r"index of checkpoints is not read: .*directory"):
        locate(tmp_path)


def test_what_no_file_can_hold_is_refused_before_writing(tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoint\['code'\] is a builtin_function"):
        Checkpoints(tmp_path).save(1, {**content(), "code": os.system})
    assert os.listdir(tmp_path) == []


def test_other_files(tmp_path):
    path = tmp_path / "model-1.ckpt"
    torch.save([1, 2], path)
    with pytest.raises(CheckpointError, match="no state_dict"):
        load(path)
    torch.save({"state_dict": {}, "code": os.system}, path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(path)


def test_the_originals_scheduler_state_is_read(tmp_path):
    path = tmp_path / "model-5.ckpt"
    torch.save({**content(), "scheduler": {"_last_lr": [np.float64(0.25)]}}, path)
    assert load(path)["scheduler"]["_last_lr"] == [0.25]


def test_a_full_disk_keeps_the_last_good_one(tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path)
    first = kept.save(1, content(1))

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=re.escape(f"The latest one is {first}")):
        kept.save(2, content(2))
    monkeypatch.undo()
    assert locate(tmp_path) == first
    assert load(first)["global_step"] == 1
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "model-1.ckpt"]


def test_weights_of_another_network():
    with pytest.raises(CheckpointError, match=r"1 missing \(bias\); 1 of other shape \(weight"):
        check_fits({"weight": torch.zeros(3, 2)}, torch.nn.Linear(2, 2), "x.ckpt")
    network = torch.nn.Linear(2, 2)
    check_fits(network.state_dict(), network, "x.ckpt")


def test_wrapped_names_lose_their_prefix_only_as_a_whole():
    one = torch.zeros(1)
    assert list(checkpoints.network_weights({"state_dict": {"module.a": one}})) == ["a"]
    both = {"module.a": one, "b": one}
    assert checkpoints.network_weights({"state_dict": both}) == both


def test_hash_sees_every_bit_and_half_types():
    weights = {"a": torch.zeros(3), "b": torch.ones(2, dtype=torch.bfloat16)}
    same = {name: weights[name].clone() for name in ("b", "a")}
    assert weights_hash(weights) == weights_hash(same)
    same["a"][1] = -0.0
    assert weights_hash(weights) != weights_hash(same)
    assert weights_hash({"n": torch.tensor(3)}) != weights_hash({"n": torch.tensor(4)})
