"""What threads share is called in the library; other work is compiled into the program."""

import os
import re

import pytest

from abele.kernels import binding
from abele.targets.cpu.emitted import build, headers
from abele.targets.cpu.emitted.calls import shared


def test_a_template_takes_what_it_knows_as_parameters():
    assert (
        shared.call("softmax", 1, (True,), "2, {0}") == "abele::softmax<1, true>(2, {0}, threads)"
    )


def test_the_library_is_told_the_same():
    text = shared.call("softmax", 12, (True,), "2, {0}")
    assert text == "abele_softmax(true, 2, {0}, abele::at_most(12, threads))"


@pytest.mark.parametrize("why", ["the library has no such function", "it has floats only"])
def test_else_threads_share_a_template(why):
    of_floats = why != "it has floats only"
    name = "running_maximum" if of_floats else "sum_rows"
    text = shared.call(name, 12, (), "{0}", of_floats=of_floats)
    assert text == f"abele::{name}<12>({{0}}, threads)"


def test_the_library_has_all_of_them():
    assert {f"abele_{name}" for name in shared.OF_THE_LIBRARY} <= set(binding.SIGNATURES)
    templates = "".join(path.read_text() for path in build.kernels.FOLDER.glob("*.h"))
    for name in shared.OF_THE_LIBRARY:
        assert re.search(rf"inline void {name}\(", templates), name


def flags(text, monkeypatch, gcc):
    monkeypatch.setattr(headers, "is_gcc", lambda path: gcc)
    monkeypatch.setattr(headers, "arguments", lambda *here: [])
    return build.command(text, "program.cpp", "program.so")


def test_gcc_compiles_long_files_with_fewer_passes(monkeypatch):
    long = "\n" * build._LONG
    assert "-O1" in flags(long, monkeypatch, gcc=True)
    assert "-O1" not in flags(long[1:], monkeypatch, gcc=True)
    assert "-O1" not in flags(long, monkeypatch, gcc=False)


def test_the_last_flag_decides_how_much_is_optimised(monkeypatch):
    quick = flags("\n" * build._LONG, monkeypatch, gcc=True)
    assert [each for each in quick if each.startswith("-O")] == ["-O3", "-O1"]


def test_programs_that_call_the_library_link_it(monkeypatch):
    text = shared.call("softmax", 2, (False,), "1, 1, 1, {0}, {1}")
    linked = [each for each in flags(text, monkeypatch, gcc=True) if each.endswith(".o")]
    assert [os.path.basename(each) for each in linked] == ["rows.cpp.o"]
    assert not any(each.endswith(".o") for each in flags("int x;", monkeypatch, gcc=True))
