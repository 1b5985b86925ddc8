"""Headers that the compiler has read: the same code sooner, and nothing that can go wrong."""

import sys
import threading

import pytest

from abele.kernels import build as kernels
from abele.targets.cpu.compiler import compiler, instruction_set
from abele.targets.cpu.emitted import build, headers

pytestmark = pytest.mark.compiler

TEXT = """#include "math.h"
#include "sums.h"
#include "norms.h"
extern "C" __attribute__((visibility("default"))) float f(float x) { return std::exp(x); }
"""
HERE = compiler() or "g++", instruction_set()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "cache_folder", lambda: tmp_path)
    headers._path.cache_clear()
    yield tmp_path
    headers._path.cache_clear()


@pytest.fixture
def gcc(folder):
    if headers._path(*HERE) is None:
        pytest.skip("this compiler is not GCC")


def wait():
    if headers._thread is not None:
        headers._thread.join()


def compiled(text=TEXT):
    """The code of a file, when the headers are there."""
    code = build.compiled("f", text)
    wait()
    return code


def test_code_is_the_same_with_headers_that_were_read(gcc, monkeypatch):
    # The compiler of the tests keeps code, with the name of the file that it was first made of.
    text = TEXT.replace(" f(", " in_files_of_one_name(")
    assert headers.arguments(*HERE) == []
    code = compiled(text)
    assert headers.arguments(*HERE)[0] == "-include"
    assert set(headers.arguments(*HERE)) < set(build.command(TEXT, "a.cpp", "a.so"))
    assert compiled(text) == code
    monkeypatch.setattr(headers, "arguments", lambda *here: [])
    assert compiled(text) == code


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_file_costs_only_time(folder, gcc, damage):
    headers.make(*HERE)
    (read,) = folder.glob("*.gch")
    whole = headers.arguments(*HERE)
    beginning = read.read_bytes()[:1000]
    read.unlink()  # not written to: the compiler of the tests keeps it under another name too
    if damage == "cut":  # the compiler fails on it
        read.write_bytes(beginning)
    assert headers.arguments(*HERE) == []
    assert build.loaded(compiled()).f
    assert headers.arguments(*HERE) == whole


def test_a_file_that_is_deleted_while_it_is_in_use_is_read_again(folder, gcc):
    headers.make(*HERE)
    (folder / "f.cpp").write_text(TEXT)
    command = build.command(TEXT, str(folder / "f.cpp"), str(folder / "f.so"))
    next(folder.glob("*.gch")).unlink()
    kernels.tool_output(command)
    assert build.loaded((folder / "f.so").read_bytes()).f


@pytest.mark.skipif(sys.platform != "linux", reason="others link torch's library")
@pytest.mark.parametrize("there", [True, False])
def test_code_needs_torch_but_the_linker_reads_an_empty_library(folder, there):
    command = build.command(TEXT, str(folder / "f.cpp"), str(folder / "f.so"))
    (library,) = folder.glob("*/libtorch_cpu.*")
    assert library.stat().st_size < 20_000
    if not there:  # torch's own is read then
        library.unlink()
    (folder / "f.cpp").write_text(TEXT)
    kernels.tool_output(command)
    code = (folder / "f.so").read_bytes()
    assert library.name.encode() in code
    assert build.loaded(code).f


def test_those_of_other_versions_are_deleted_when_new_ones_are_made(folder, gcc):
    old = folder / "abele_headers_old.h.gch"
    old.write_bytes(b"")
    headers.make(*HERE)
    assert not old.exists()
    assert len(list(folder.iterdir())) == 2  # nothing temporary is left


def test_other_compilers_read_them_each_time(folder):
    other = folder / "clang++"
    other.write_text("#!/bin/sh\necho clang version 14\n")
    other.chmod(0o755)
    headers.make(str(other), "any")
    assert headers.arguments(str(other), "any") == []
    assert list(folder.iterdir()) == [other]


@pytest.mark.parametrize("cores", [1, 2])
def test_files_do_not_wait_for_what_a_thread_makes(gcc, monkeypatch, cores):
    made, may_go_on, make = [], threading.Event(), headers.make

    def slowly(*here):
        may_go_on.wait(10)
        make(*here)
        made.append(here)

    monkeypatch.setattr(headers, "make", slowly)
    monkeypatch.setattr(headers.processor, "cores", lambda: cores)
    if cores == 1:
        may_go_on.set()
    headers.make_beside(*HERE)
    headers.make_beside(*HERE)  # one thread does
    assert len(made) == (2 if cores == 1 else 0)
    may_go_on.set()
    wait()
    assert headers.arguments(*HERE)[0] == "-include"
    assert len(made) == 3 - cores
