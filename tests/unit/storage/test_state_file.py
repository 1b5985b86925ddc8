"""Files of plain state, random numbers written down, and what dead processes left."""

import io
import os
import random
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

from abele.errors import SerializationError
from abele.runtime import host_random
from abele.storage import atomic, state_file, values


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


def test_damage_is_found_before_anything_is_read(tmp_path):
    path = tmp_path / "file"
    state_file.write(path, {"weights": torch.zeros(1000)})
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        broken = bytearray(whole)
        broken[at] ^= 16
        try:
            result = state_file.from_bytes(bytes(broken))
        except ValueError:
            continue
        assert torch.equal(result["weights"], torch.zeros(1000))  # padding, or a name nobody reads
    with pytest.raises(ValueError, match="not complete \\(500 bytes"):
        state_file.from_bytes(whole[:500])
    with pytest.raises(ValueError, match="is damaged"):
        state_file.from_bytes(whole.replace(bytes(100), bytes(99) + b"x", 1))


CONTENT = {
    "state_dict": {f"{n}.weight": torch.linspace(-n, n, 12).reshape(4, 3) for n in range(1, 9)},
    "optimizer": {"lr": 0.1, "moments": [torch.arange(7.0).half()]},
    "step": 12,
}
RECORD = b"PK\x01\x02"  # begins an entry of a zip's table of contents


def without_digests():
    stream = io.BytesIO()
    torch.save(CONTENT, stream)
    return stream.getvalue()


def flipped(data, bit):
    broken = bytearray(data)
    broken[bit // 8] ^= 1 << bit % 8
    return bytes(broken)


def check_flips(data, bits):
    """Every flip is refused, or changes nothing that is read."""
    refused = 0
    for bit in bits:
        try:
            result = state_file.from_bytes(flipped(data, bit))
        except ValueError:
            refused += 1
            continue
        result.pop("digests", None)  # its own name may have changed
        assert values.first_difference(values.of_content(CONTENT), result) is None, bit
    assert refused


@pytest.mark.parametrize("data", [state_file.to_bytes(CONTENT), without_digests()])
def test_a_flipped_bit_in_the_table_of_contents_never_gives_other_values(data):
    first = data.index(RECORD)
    check_flips(data, range(8 * first, 8 * (first + 46)))
    last = data.rindex(RECORD)
    attributes = range(8 * (last + 38), 8 * (last + 42))
    check_flips(data, [*attributes, *random.sample(range(8 * len(data)), 100)])


@pytest.mark.long
@pytest.mark.parametrize("data", [state_file.to_bytes(CONTENT), without_digests()])
def test_no_flipped_bit_of_the_last_6_kb_gives_other_values(data):
    start = 8 * max(0, len(data) - 6144)
    before = random.sample(range(start), min(start, 2000))
    check_flips(data, [*range(start, 8 * len(data)), *before])


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


def test_too_little_memory_for_the_checksums_is_no_damage(monkeypatch):
    def full(_):
        raise MemoryError

    monkeypatch.setattr(zipfile.ZipFile, "testzip", full)
    with pytest.raises(MemoryError):
        state_file.from_bytes(state_file.to_bytes(CONTENT))


def test_a_sound_file_that_only_code_could_read_is_no_damage(tmp_path):
    torch.save({"code": os.system}, tmp_path / "file")
    with pytest.raises(ValueError, match="UnpicklingError") as refused:
        state_file.read(tmp_path / "file")
    assert type(refused.value) is ValueError
    with pytest.raises(FileNotFoundError):
        state_file.read(tmp_path / "none")


def test_an_entry_that_says_it_is_a_folder_is_damage():
    """torch would leave the tensor's memory as it is: that of somebody else before."""
    data = bytearray(without_digests())
    entry = data.rindex(b"archive/data/") - 46
    assert data[entry : entry + 4] == RECORD
    data[entry + 38] ^= 0x10
    with pytest.raises(ValueError, match="its part archive/data/8 is damaged"):
        state_file.from_bytes(bytes(data))


@pytest.mark.parametrize(("field", "mask"), [(8, 1), (10, 8), (9, 0x20)])
def test_entries_that_claim_encryption_or_compression_are_damage(field, mask):
    data = bytearray(state_file.to_bytes(CONTENT))
    data[data.index(RECORD) + field] ^= mask
    with pytest.raises(ValueError, match="damaged"):
        state_file.from_bytes(bytes(data))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda c: c["state_dict"]["1.weight"].add_(1), r"\['state_dict'\]\['1.weight'\]"),
        (lambda c: c["optimizer"]["moments"][0].resize_(6), r"\['optimizer'\]\['moments'\]\[0\]"),
        (lambda c: c["state_dict"].pop("2.weight"), "everything else"),
        (lambda c: c.update(step=True), "everything else"),
    ],
)
def test_other_values_than_those_written_are_named(change, place):
    content = torch.load(io.BytesIO(state_file.to_bytes(CONTENT)), weights_only=True)
    change(content)
    stream = io.BytesIO()
    torch.save(content, stream)
    with pytest.raises(ValueError, match=f"^{place} is not what was written"):
        state_file.from_bytes(stream.getvalue())


def test_files_without_digests_are_read():
    result = state_file.from_bytes(without_digests())
    assert values.first_difference(values.of_content(CONTENT), result) is None
    with pytest.raises(SerializationError, match="'digests' is taken"):
        state_file.to_bytes({"digests": {}})


def test_every_bit_of_a_tensor_counts_whatever_its_type():
    for dtype in (torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex64):
        zero, one = torch.zeros(2, 3, dtype=dtype), torch.zeros(2, 3, dtype=dtype)
        one[1, 2] = 1
        written = values.of_content([zero])
        assert values.first_difference(written, [zero.t().contiguous().t()]) is None
        assert values.first_difference(written, [one]) == "[0]"
        assert values.first_difference(written, [zero.reshape(3, 2)]) == "[0]"
    sparse = torch.eye(3).to_sparse()
    assert values.first_difference(values.of_content([sparse]), [sparse * 2]) == "[0]"
    assert values.first_difference(values.of_content({"a": -0.0}), {"a": 0.0}) is not None
    assert values.first_difference(values.of_content([1, zero]), [1]) is not None


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
