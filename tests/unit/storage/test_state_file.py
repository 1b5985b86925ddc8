"""Files of plain state, random numbers written down, and what dead processes left."""

import os
import random
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

from abele.errors import SerializationError
from abele.runtime import host_random
from abele.storage import state_file


def test_content_comes_back_as_it_was(tmp_path):
    content = {
        "tensor": torch.arange(3.0),
        "numbers": [1, 2.5, True, None, 1j, float("inf")],
        "pair": (1, ("a", b"b")),
        "kinds": [torch.float16, torch.Size([2, 3]), torch.device("cpu")],
        "mappings": [OrderedDict(a=1), Counter({3: 2}), {4: {5}}],
    }
    state_file.write(tmp_path / "new" / "file", state_file.plain(content))
    result = state_file.from_bytes((tmp_path / "new" / "file").read_bytes())
    assert torch.equal(result.pop("tensor"), content.pop("tensor"))
    assert result == content
    assert [type(each) for each in result["mappings"]] == [OrderedDict, Counter, dict]


def test_a_part_of_a_storage_does_not_bring_all_of_it(tmp_path):
    whole = torch.zeros(100_000)
    result = state_file.plain({"part": whole[:2], "twice": [whole, whole]})
    assert result["part"].untyped_storage().nbytes() == 8
    assert result["twice"][0].data_ptr() == result["twice"][1].data_ptr()
    assert len(state_file.to_bytes(result)) < 450_000


def test_numbers_of_numpy_become_plain():
    result = state_file.plain([np.float64(0.1), np.int32(3)], "x")
    assert [(type(n), n) for n in result] == [(float, 0.1), (int, 3)]
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


CONTENT = {
    "state_dict": {f"{n}.weight": torch.linspace(-n, n, 12).reshape(4, 3) for n in range(1, 9)},
    "optimizer": {"lr": 0.1, "moments": [torch.arange(7.0).half()]},
    "step": 12,
}


def test_every_damage_is_found(tmp_path):
    path = tmp_path / "file"
    state_file.write(path, CONTENT)
    whole = path.read_bytes()
    assert whole == state_file.to_bytes(CONTENT)
    mark = whole.rindex(b"sha256:")
    for at in range(0, mark, 97):
        broken = bytearray(whole)
        broken[at] ^= 16
        if at not in (mark - 2, mark - 1):  # the length of the comment, which torch checks
            with pytest.raises(state_file.DamagedFileError, match="its digest differs"):
                state_file.from_bytes(bytes(broken))
    for cut in (whole[:500], whole[:-90], b"", b"x" * 5000):
        with pytest.raises(state_file.DamagedFileError, match=f"not complete \\({len(cut)} bytes"):
            state_file.from_bytes(cut)


def test_torch_reads_and_writes_such_files(tmp_path):
    state_file.write(tmp_path / "file", CONTENT)
    loaded = torch.load(tmp_path / "file", weights_only=True)
    assert loaded["step"] == 12
    loaded["step"] += 1  # changed on purpose
    torch.save(loaded, tmp_path / "file")
    assert state_file.read(tmp_path / "file")["step"] == 13


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (MemoryError(), MemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), MemoryError),
        (RuntimeError("PytorchStreamReader failed"), state_file.DamagedFileError),
    ],
)
def test_too_little_memory_is_no_damage(monkeypatch, error, raised):
    def load(*_, **__):
        raise error

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(raised):
        state_file.from_bytes(state_file.to_bytes(CONTENT))


def test_a_sound_file_that_only_code_could_read_is_no_damage(tmp_path):
    torch.save({"code": os.system}, tmp_path / "file")
    with pytest.raises(ValueError, match="UnpicklingError") as refused:
        state_file.read(tmp_path / "file")
    assert type(refused.value) is ValueError
    with pytest.raises(FileNotFoundError):
        state_file.read(tmp_path / "none")


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
