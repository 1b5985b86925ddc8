"""Compiled kernels that the package brings: which are used, and which are not."""

import ctypes
import hashlib
import importlib
import json
import platform
import warnings
from pathlib import Path

import pytest
import torch

from abele.errors import CompilerError
from abele.kernels import build, packaged, self_test, sources
from abele.targets import candidates
from abele.targets.base import Target
from abele.targets.cpu import Cpu
from abele.targets.cpu.compiler import kernel_problem

ZEN_4 = sorted(sources.LEVELS["x86-64-v4"] | {"sse2", "avx512_bf16"})
GRAVITON_2 = sorted(sources.LEVELS["armv8.2-a"] | {"fp", "aes"})
HASWELL = sorted(sources.LEVELS["x86-64-v3"] | {"sse2"})


@pytest.mark.parametrize(
    ("instructions", "level"),
    [
        (ZEN_4, "x86-64-v4"),
        (HASWELL, "x86-64-v3"),
        ([*HASWELL, "avx512f"], "x86-64-v3"),  # Xeon Phi has this one and few others
        (["sse2", "avx"], None),
        (["asimd", "sve"], None),
        ([], None),
    ],
)
def test_a_processor_has_the_highest_level_of_which_it_has_everything(instructions, level):
    assert sources.level("x86_64", instructions) == level


@pytest.mark.parametrize(
    ("machine", "instructions", "level"),
    [
        ("x86_64", ZEN_4, "x86-64-v4"),
        ("aarch64", GRAVITON_2, "armv8.2-a"),
        ("aarch64", ZEN_4, None),  # as an emulator shows it
        ("x86_64", GRAVITON_2, None),
        ("aarch64", ["asimd"], None),
    ],
)
def test_kernels_of_a_level_are_used_on_its_architecture(machine, instructions, level, monkeypatch):
    become(monkeypatch, machine, instructions)
    assert packaged.level() == level


def become(monkeypatch, machine, instructions, denied=()):
    """Let Linux list a processor's instructions, and the processor itself deny some of them."""
    monkeypatch.setattr(packaged.processor, "listed", lambda: frozenset(instructions))
    monkeypatch.setattr(packaged.platform, "machine", lambda: machine)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: dict.fromkeys(denied, False))


@pytest.mark.parametrize(
    ("denied", "level"),
    [([], "x86-64-v4"), (["avx512_bw"], "x86-64-v3"), (["avx512_f", "avx2"], None)],
)
def test_what_an_emulator_lacks_is_not_used_although_linux_lists_it(denied, level, monkeypatch):
    become(monkeypatch, "x86_64", ZEN_4, denied)
    assert packaged.level() == level
    why_slow = Cpu().why_slow()
    assert (why_slow is None) is (level is not None)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64")
def test_torch_names_the_instructions_of_levels():
    assert packaged._OF_TORCH.keys() >= sources.LEVELS["x86-64-v4"] - {"movbe"}
    assert set(packaged._OF_TORCH.values()) <= torch.cpu.get_capabilities().keys()


def test_kernels_are_compiled_for_a_level_or_else_for_this_processor():
    assert "-march=x86-64-v3" in sources.flags("x86-64-v3")
    assert "-march=native" not in sources.flags("x86-64-v4")
    assert sources.flags(None) == sources.FLAGS


@pytest.fixture
def brought(tmp_path, monkeypatch):
    """A folder of a package for this machine's level; ``write`` makes its list anew."""
    monkeypatch.setattr(packaged, "FOLDER", tmp_path / "compiled")
    become(monkeypatch, "x86_64", ZEN_4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_version", lambda compiler: "a compiler")
    caches = build.cache_folder, packaged._usable
    for each in caches:
        each.cache_clear()
    folder = tmp_path / "compiled" / "x86-64-v4"
    folder.mkdir(parents=True)
    for source in sources.KERNELS:
        (folder / f"{source}.o").write_text(source)
    (folder / packaged.LIBRARY).write_text("all")
    write(folder)
    yield folder
    for each in caches:
        each.cache_clear()


def write(folder: Path, **other):
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != packaged.LIST
    }
    content = {"sources": sources.fingerprint(), "files": files, **other}
    (folder / packaged.LIST).write_text(json.dumps(content))


def test_nothing_is_compiled_that_the_package_brings(brought):
    assert packaged.folder() == brought
    for names in (["product.cpp", build.LIBRARY], None):
        assert build.missing_s("c++", "here", names) == 0
        assert build.makings("c++", "here", names) == [[]]
    assert build.linkable("c++", "here", ["rows.cpp"]) == [str(brought / "rows.cpp.o")]
    assert build.shared_library("c++", "here") == b"all"


def test_compiled_kernels_of_the_package_are_tested_by_their_objects(brought, monkeypatch):
    """A note says that they have passed, also where there is no compiler to ask."""
    monkeypatch.setitem(kernel_problem.__globals__, "compiler", lambda: None)
    monkeypatch.setattr(build, "_version", None)
    found = list[str]()

    def problem(library, kinds, objects=None):
        found.extend(objects(["rows.cpp"]))

    monkeypatch.setattr(self_test, "problem", problem)
    kernel_problem(ctypes.CDLL(None), noted=True)
    assert found == [str(brought / "rows.cpp.o")]


@pytest.mark.usefixtures("brought")
def test_a_processor_of_another_level_compiles_its_own(monkeypatch):
    monkeypatch.setattr(packaged.processor, "listed", lambda: frozenset(HASWELL))
    assert packaged.folder() is None
    assert build.missing_s("c++", "here", ["rows.cpp"]) == sources.KERNELS["rows.cpp"]


def removed(folder):
    (folder / "rows.cpp.o").unlink()


def cut_short(folder):
    (folder / packaged.LIBRARY).write_text("al")


def unlisted(folder):
    write(folder, files=None)


def of_another_architecture(folder):
    folder.rename(folder.with_name("armv8.2-a"))


def of_other_sources(folder):
    write(folder, sources="0")


def no_json(folder):
    (folder / packaged.LIST).write_text("{")


def no_mapping(folder):
    (folder / packaged.LIST).write_text("[]")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (removed, "rows.cpp.o is missing"),
        (cut_short, "kernels.so is damaged"),
        (unlisted, "kernels.so is damaged"),
        (of_another_architecture, r"compiled are not used: they are for aarch64\."),
        (of_other_sources, "compiled from other sources"),
        (no_json, "kernels.json cannot be read"),
        (no_mapping, "compiled from other sources"),
    ],
)
def test_what_is_not_as_it_was_made_is_compiled_again_with_one_warning(brought, spoil, why):
    spoil(brought)
    with pytest.warns(RuntimeWarning, match=f"(?s){why}.*install abele again"):
        assert build.missing_s("c++", "here", ["rows.cpp"]) == sources.KERNELS["rows.cpp"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert packaged.folder() is None


@pytest.mark.usefixtures("brought")
def test_programs_do_not_wait_for_kernels_that_the_package_brings(monkeypatch):
    monkeypatch.setattr("abele.targets.cpu.compiler", lambda: "c++")
    target: Target = Cpu()
    assert build.LIBRARY in set(target.lowering("op_by_op").possible_kernels(None))
    assert (
        target.setup_seconds_left({build.LIBRARY})
        == target.setup_seconds_left(sources.KERNELS)
        == 0
    )


def test_without_a_compiler_the_package_runs_what_needs_none_of_its_own(brought, monkeypatch):
    monkeypatch.setattr(sources, "compiler", lambda: None)
    monkeypatch.setattr(importlib.import_module("abele.targets.cpu.compiler"), "_zig", lambda: None)
    target: Target = Cpu()
    assert target.cannot_compile(["op_by_op"]) is None
    for lowerings in (["op_by_op", "emitted"], ["interpreter"], None):
        assert "no C++ compiler was found" in str(target.cannot_compile(lowerings))
    ways = [(target.lowering(name), "") for name in ("emitted", "op_by_op", "interpreter")]
    assert candidates._possible(target, ways) == ways[1:]
    without = ways[::2]  # what would only be interpreted falls back, and says so
    assert candidates._possible(target, without) == without
    (brought / packaged.LIST).unlink()
    packaged._usable.cache_clear()
    assert "no C++ compiler was found" in str(target.cannot_compile(["op_by_op"]))


@pytest.mark.parametrize("base", ["x" * 300, "file/below"])
def test_a_cache_that_cannot_be_entered_is_replaced_for_this_process(base, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / base))
    with pytest.warns(RuntimeWarning, match="cannot be written: set XDG_CACHE_HOME"):
        folder = build.cache_folder.__wrapped__()
    assert folder.is_dir()
    assert not folder.is_relative_to(tmp_path / base)
    folder.rmdir()


def test_a_relative_cache_stays_where_it_was(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert build.cache_folder.__wrapped__() == tmp_path / "relative" / "abele"


def test_a_compiler_that_makes_no_file_is_named_and_no_crash(tmp_path):
    with pytest.raises(CompilerError, match=r"compiler made no file.*Set CXX to another"):
        build.make(build.Making(["/bin/true", build.RESULT], str(tmp_path / "x.o")))
