"""Files of plain state, random numbers written down, and what dead processes left."""

import os
import random
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

from abele import atomic, host_random, state_file
from abele.errors import SerializationError


def test_content_comes_back_as_it_was(tmp_path):
    content = {
        "tensor": torch.arange(3.0),
        "numbers": [1, 2.5, True, None, 1j, float("inf")],
        "pair": (1, ("a", b"b")),
        "kinds": [torch.float16, torch.Size([2, 3]), torch.device("cpu")],
        "mappings": [OrderedDict(a=1), Counter({3: 2}), {4: {5}}],
    }
    state_file.write(tmp_path / "new" / "file", state_file.plain(content))
    found = state_file.from_bytes((tmp_path / "new" / "file").read_bytes())
    assert torch.equal(found.pop("tensor"), content.pop("tensor"))
    assert found == content
    assert [type(each) for each in found["mappings"]] == [OrderedDict, Counter, dict]
    assert state_file.damage(tmp_path / "new" / "file") is None


def test_a_part_of_a_storage_does_not_bring_all_of_it(tmp_path):
    whole = torch.zeros(100_000)
    found = state_file.plain({"part": whole[:2], "twice": [whole, whole]})
    assert found["part"].untyped_storage().nbytes() == 8
    assert found["twice"][0].data_ptr() == found["twice"][1].data_ptr()
    assert len(state_file.to_bytes(found)) < 450_000


def test_numbers_of_numpy_become_plain():
    found = state_file.plain([np.float64(0.1), np.int32(3)], "x")
    assert [(type(n), n) for n in found] == [(float, 0.1), (int, 3)]
    parameter = torch.nn.Parameter(torch.ones(2))
    assert type(state_file.plain(parameter)) is torch.Tensor


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [len]}, r"state\['a'\]\[0\] is a builtin_function_or_method"),
        ({"a": np.ones(2)}, r"state\['a'\] is a ndarray"),
        ({(1, len): 2}, "a key of state"),
        ({Ellipsis}, "an item of state is a ellipsis"),
    ],
)
def test_what_only_pickle_could_keep_is_refused(value, text):
    with pytest.raises(SerializationError, match=text):
        state_file.plain(value)


def test_damage_is_found_before_anything_is_read(tmp_path):
    path = tmp_path / "file"
    assert state_file.damage(path) == "there is no such file"
    state_file.write(path, {"weights": torch.zeros(1000)})
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        broken = bytearray(whole)
        broken[at] ^= 16
        try:
            found = state_file.from_bytes(bytes(broken))
        except ValueError:
            continue
        assert torch.equal(found["weights"], torch.zeros(1000))  # padding, or a name nobody reads
    with pytest.raises(ValueError, match="not complete \\(500 bytes"):
        state_file.from_bytes(whole[:500])
    with pytest.raises(ValueError, match="is damaged"):
        state_file.from_bytes(whole.replace(bytes(100), bytes(99) + b"x", 1))


def test_random_numbers_go_on_where_they_were_written_down():
    own = torch.Generator().manual_seed(3)
    random.gauss(0, 1)
    np.random.standard_normal()

    def draw():
        mine = torch.rand(2, generator=own)
        return [*mine.tolist(), *torch.rand(2).tolist(), random.gauss(0, 1), np.random.randn()]

    state = state_file.from_bytes(state_file.to_bytes(host_random.read(own)))
    expected = draw()
    draw()
    host_random.write(state, own)
    assert draw() == expected


def test_only_what_dead_processes_left_is_swept(tmp_path):
    host = atomic._host()
    names = [f".a.{host}-99999999.part", f".b.{host}-99999999.part", f".a.{host}-1.part", "a.part"]
    for name in names:
        (tmp_path / name).write_text("")
    atomic.sweep(tmp_path, "a")
    assert sorted(os.listdir(tmp_path)) == sorted(names[1:])
    atomic.sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(names[2:])
