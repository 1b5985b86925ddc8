"""Sizes as people write them, and the limits of this machine."""

import pytest

from abele.errors import LimitError
from abele.fit import limits
from abele.fit.limits import bytes_text, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("8G", 8 * 2**30),
        ("500MB", 500_000_000),
        ("1.5KiB", 1536),
        ("123456", 123456),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8 parsecs", "-8 parsecs", "--8GiB", "8GiB of it"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(LimitError, match=r"is no size.*such as 8GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("8GiB", "8GiB"),
        ("8 gib", "8 gib"),
        ("8G", "8G (8.00 GiB)"),
        ("500MB", "500MB (477 MiB)"),
        ("mk2", "mk2 (897 MiB)"),
    ],
)
def test_a_limit_is_named_once(name, text):
    assert limits.shown(name, limits.of_machine(name).size) == text


@pytest.mark.parametrize("text", ["0GiB", "-8GiB", " -.5 MB"])
def test_no_memory_is_no_limit(text):
    with pytest.raises(LimitError, match=f"{text!r} leaves no memory. Give a size above zero"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.50 KiB"), (20 * 2**20, "20.0 MiB"), (2**40, "1.00 TiB")],
)
def test_sizes_are_written_with_three_digits(size, text):
    assert bytes_text(size) == text


def test_the_host_has_what_the_smaller_of_machine_and_group_allows(monkeypatch, tmp_path):
    group = tmp_path / "memory.max"
    monkeypatch.setattr(limits, "_GROUPS", (str(group),))
    machine = limits.host_memory()
    group.write_text("max\n")
    assert limits.host_memory() == machine
    group.write_text("1048576\n")
    assert limits.host_memory() == 2**20
    assert limits.of_machine("cpu").size == 2**20


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(LimitError, match="no device 'cuda:77'"):
        limits.of_machine("cuda:77")


def test_an_ipu_has_the_tiles_it_has():
    assert limits.of_machine("mk2").size == 1472 * 624 * 1024
