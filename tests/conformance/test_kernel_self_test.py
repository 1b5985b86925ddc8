"""Kernels that compute something else are found on the user's machine, and not used."""

import re
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from abele import build as build_program
from abele import get_target
from abele.compilation.verdict import ComparisonWarning
from abele.errors import CompilerError
from abele.kernels import binding, build, self_test, sources
from abele.kernels.cases import TABLES, images, matrices, rows
from abele.step.config import StepConfig
from abele.targets.cpu.compiler import instruction_set
from abele.targets.cpu.emitted import headers
from abele.targets.cpu.op_by_op.lowering import OpByOp
from helpers.kernel_library import COMPILER, NEEDS_COMPILER, compiled, kernels
from helpers.runs import captured, session_of

pytestmark = NEEDS_COMPILER

FAST = ("-std=c++17", "-O1", "-march=native", "-fopenmp", "-fPIC", "-Wno-psabi")
# A kind, a file, what is replaced in it, by what, and in which function that is found first.
# Those that compile in a second, one of each kind; the others are compiled by --thorough runs.
FAULTS = [
    ("adam", "updates.cpp", "i < end", "i + 1 < end", "abele_adam"),
    ("pools", "max_pool.cpp", "i < columns; ++i) one", "i < 7; ++i) one", "abele_max_pool"),
    ("recurrent", "recurrent.cpp", "step + layer.reverse;", "step;", "abele_recurrent"),
    ("upsampling", "upsample.cpp", "i < 2 * p.width", "i < 2 * p.width - 1", "abele_upsample"),
]
FURTHER = [
    ("sgd", "updates.cpp", "p[i] -= rate", "p[i] += rate", "abele_sgd"),
    ("pools", "max_pool.cpp", "; c < channels", "; c + 1 < channels", "abele_max_pool"),
    ("recurrent", "recurrent.cpp", "* cells_before[u]", "* cells_before[0]", "abele_"),
    ("recurrent", "recurrent.cpp", "candidate * reset", "candidate", "abele_recurrent_backward"),
    ("recurrent", "recurrent.cpp", "state <= 0.0f", "state < 0.0f", "abele_recurrent_"),
    ("norms", "norm_activation.cpp", "i < layout.rest;", "i < 0;", "abele_norm_statistics"),
    ("attention", "attention.cpp", "whole; d < all", "whole; d + 1 < all", "abele_attention_"),
    ("depthwise", "conv_depthwise.cpp", "row < p.out_height; ++row)", "row < 0;)", "abele_depth"),
    ("products", "tiles.h", "; p < k; ++p)\n    for", "; p < 0;)\n    for", "abele_product"),
    ("rows", "tables.h", "k < last; ++k) to[k]", "k < 9; ++k) to[k]", "abele_embedding_backward"),
    ("rows", "losses.h", "i < size; ++i) y[i] /=", "i < 16; ++i) y[i] /=", "abele_softmax"),
    ("patches", "conv_patches.cpp", "p < pixels;", "p + 1 < pixels;", "abele_patches_spread"),
    (
        "winograd",
        "winograd_tiles.h",
        "store_some(to, value, rest)",
        "(void)rest",
        "abele_winograd_",
    ),
    ("pointwise", "conv_pointwise.cpp", "* stride_height;", ";", "abele_pointwise_forward"),
    (
        "convolutions",
        "conv_pixels.cpp",
        "plan.tasks(), [&]",
        "plan.tasks() - 1, [&]",
        "abele_conv_",
    ),
    (
        "convolutions",
        "conv_channels_last.cpp",
        "i < x.width; i",
        "i + 1 < x.width; i",
        "abele_conv_",
    ),
]


def test_the_kernels_pass():
    assert self_test.problem(kernels()) is None
    assert self_test.kinds_in(kernels()) == set(TABLES)


@pytest.mark.parametrize("kind", TABLES)
def test_each_row_of_each_table_is_computed(kind):
    """A row for which a processor has no code would end its table."""
    for table in TABLES[kind].values():
        assert len([case for case in table(kernels()) if case.problem() is None]) >= 33


# Planes of many samples are summed by each thread for its own.
ALIKE = [
    (kind, name)
    for kind, tables in TABLES.items()
    for name in tables
    if not name.startswith("abele_conv_")
]


@pytest.mark.parametrize(("kind", "name"), ALIKE)
def test_any_number_of_threads_gives_the_same_bits(kind, name):
    def results(threads):
        with pytest.MonkeyPatch.context() as patch:
            for module in (images, matrices, rows):
                patch.setattr(module, "threads_of", lambda _: threads)
            return [each.results for each in TABLES[kind][name](kernels())]

    one = results(1)
    for threads in (3, 16):  # an odd number, and more than some have parts
        for ours, alone in zip(results(threads), one, strict=True):
            assert all(map(torch.equal, ours, alone))


def altered(folder: Path, file: str, old: str, new: str) -> Path:
    """The sources with a text of one file replaced."""
    shutil.copytree(sources.FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "cases"))
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    return folder


@pytest.mark.parametrize(
    ("kind", "file", "old", "new", "function"),
    [*FAULTS, *(pytest.param(*each, marks=pytest.mark.thorough) for each in FURTHER)],
)
def test_a_fault_is_found(kind, file, old, new, function, tmp_path):
    folder = altered(tmp_path / "sources", file, old, new)
    own, *others = sources.KINDS[kind]
    if file in others:
        own, others = file, [each for each in sources.KINDS[kind] if each != file]
    objects = compiled(tmp_path, [folder / own], FAST)
    objects += build.linkable(COMPILER, instruction_set(), others)
    library = str(tmp_path / "kind.so")
    subprocess.run([COMPILER, "-shared", "-fopenmp", *objects, "-o", library], check=True)
    problem = self_test.problem(binding.ctypes.CDLL(library))
    assert problem is not None
    assert problem.startswith(f"the kernel {function}")
    assert " fails its self-test: " in problem


# -- programs --------------------------------------------------------------------------------------


class Pooled(torch.nn.Module):
    """Its rows have no remainder, so that nothing but the self-test meets the kernel's tail."""

    def forward(self, x):
        return torch.nn.functional.max_pool2d(x, 2) * 2


X = torch.arange(2 * 3 * 16 * 32.0).view(2, 3, 16, 32).sin()
EXPECTED = torch.nn.functional.max_pool2d(X, 2) * 2


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """A cache of its own, and notes of its own in the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(self_test, "_PASSED", set())
    caches = build.cache_folder, headers._path
    for each in caches:
        each.cache_clear()
    yield tmp_path / "cache" / "abele"
    for each in caches:
        each.cache_clear()


@pytest.fixture
def tested(monkeypatch):
    """The kinds of kernels that were tested."""
    kinds, test = list[str](), self_test._problem
    monkeypatch.setattr(
        self_test, "_problem", lambda library, kind: (kinds.append(kind), test(library, kind))[1]
    )
    return kinds


@pytest.fixture
def emitted_alone(monkeypatch):
    """No other lowering, for which all kernels would be compiled."""
    monkeypatch.setattr(OpByOp, "why_not", lambda self, program: "it is left out")


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Has the compiler get the remainder of a max pool wrong; ``flags`` says with which flags."""
    folder = altered(
        tmp_path / "broken", "max_pool.cpp", "i < columns; ++i) one", "i < 0; ++i) one"
    )
    compiling = sources.compiling

    def wrongly(flags):
        def command(compiler: str, source: str, given: Sequence[str]) -> list[str]:
            wrong = source == "max_pool.cpp" and flags(given)
            return compiling(compiler, str(folder / source) if wrong else source, given)

        monkeypatch.setattr(sources, "compiling", command)

    return wrongly


def first_call(target=None, announce=lambda text: None):
    """The result of a program's first call, with how it was computed."""
    config, module = StepConfig(training=False), Pooled()
    programs = captured(module, [X], config).programs
    made, record = build_program(programs, config, target=target, announce=announce)
    (result,) = session_of(made, module, config, None).step([X])
    return result, record.running


@pytest.mark.usefixtures("cache_folder")
def test_kernels_are_tested_once_per_machine(tested):
    for _ in range(2):
        result, running = first_call()
        assert torch.equal(result, EXPECTED)
        assert running.lowerings["forward"].name == "emitted"
        self_test._PASSED.clear()  # as another process
    assert tested == ["pools"]


def object_changed(folder):
    (path,) = folder.glob("*.objects/max_pool.cpp.o")
    path.write_bytes(path.read_bytes() + b"x")


def note_damaged(folder):
    (folder / "abele_tested_pools.txt").write_bytes(b"\xff\x00")


def note_gone(folder):
    (folder / "abele_tested_pools.txt").unlink()


@pytest.mark.parametrize("change", [object_changed, note_damaged, note_gone])
def test_other_objects_and_damaged_notes_are_tested_again(change, cache_folder, tested):
    first_call()
    change(cache_folder)
    self_test._PASSED.clear()
    for _ in range(2):
        first_call()
        self_test._PASSED.clear()
    assert tested == ["pools"] * 2


@pytest.mark.usefixtures("cache_folder")
def test_on_another_processor_kernels_are_tested_again(tested, monkeypatch):
    first_call()
    monkeypatch.setattr("abele.processor.name", lambda: "another")
    first_call()
    assert tested == ["pools"] * 2


@pytest.mark.usefixtures("cache_folder")
def test_without_a_cache_that_can_be_written_each_process_tests(tested, monkeypatch):
    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr(self_test.atomic, "write_text", full)
    first_call()
    first_call()
    assert tested == ["pools"]


def one_warning(caught):
    (text,) = [str(each.message) for each in caught if each.category is ComparisonWarning]
    return text


@pytest.mark.usefixtures("cache_folder")
def test_a_kernel_that_the_compiler_gets_wrong_is_compiled_without_vectorizers(broken):
    broken(lambda flags: "-O2" not in flags)
    announced = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result, running = first_call(announce=announced.append)
    said = one_warning(caught)
    assert "programs are compiled again without vectorizers (please wait)" in announced[0]
    assert torch.equal(result, EXPECTED)
    assert "so it was compiled again without vectorizers: the kernel abele_max_pool fails" in said
    assert re.search(r"no number where numbers are up to \S+ \(for images 1, channels 1,", said)
    assert running.check.endswith(", compiled again without vectorizers")
    assert running.lowerings["forward"].name == "emitted"


@pytest.mark.usefixtures("cache_folder", "emitted_alone")
def test_a_kernel_that_is_always_wrong_is_not_used(broken, tested):
    broken(lambda flags: True)
    with pytest.warns(ComparisonWarning, match="the kernel abele_max_pool fails its self-test"):
        result, running = first_call()
    assert torch.equal(result, EXPECTED)
    assert running.interpreted
    assert tested == ["pools"] * 2


@pytest.mark.usefixtures("cache_folder", "emitted_alone")
def test_a_wrong_kernel_is_an_error_where_the_target_was_insisted_on(broken):
    broken(lambda flags: True)
    with pytest.raises(CompilerError, match=r"Target 'cpu' was asked for, .*kernel abele_max_pool"):
        first_call(get_target("cpu"))
