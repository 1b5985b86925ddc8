"""The kernels' library: made once, and called from C without torch."""

import ctypes
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from abele.compilation import native
from abele.errors import CompilerError
from abele.kernels import binding, build, sources
from abele.targets.cpu.compiler import instruction_set
from helpers.kernel_library import COMPILER, NEEDS_COMPILER, compiled, kernels

pytestmark = NEEDS_COMPILER

THREADS = sources.fitting(COMPILER or "g++", ("-fopenmp",))
AS_C = ("-x", "c", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def object_of(folder, source):
    """``source`` compiled as C that knows the header alone."""
    (folder / "main.c").write_text(source)
    command = [COMPILER, *AS_C, f"-I{sources.FOLDER}", "-c", str(folder / "main.c")]
    subprocess.run([*command, "-o", str(folder / "main.o")], check=True)
    return str(folder / "main.o")


def test_the_shared_library_needs_no_torch(tmp_path):
    path = tmp_path / "kernels.so"
    path.write_bytes(build.shared_library(COMPILER, instruction_set()))
    assert "torch" not in output("ldd", str(path))
    symbols = output("nm", "-D", "--defined-only", str(path)).split()
    of_cpp = re.compile("_Z[A-Z]{0,2}St")  # inline functions of the C++ library
    found = {name for name in symbols[2::3] if not of_cpp.match(name)}
    assert found == {*binding.SIGNATURES, "abele_usable_threads"}


def test_objects_link_to_plain_c(tmp_path):
    """A window of 2x2 of a program in C: its largest value, and where it was."""
    main = object_of(
        tmp_path,
        """#include "abi.h"
        int main(void) {
          const float x[4] = {1, 2, 4, 3};
          float y; uint8_t place;
          const AbelePool pool = {1, 1, 2, 2, 0};
          if (abele_max_pool(&pool, x, &y, &place, 1) != ABELE_OK) return 1;
          return y == 4 && place == 2 ? 0 : 2;
        }\n""",
    )
    build.compile_objects(COMPILER, instruction_set(), sources.KINDS["pools"])
    objects = build.linkable(COMPILER, instruction_set(), sources.KINDS["pools"])
    program = str(tmp_path / "program")
    subprocess.run([COMPILER, main, *objects, *THREADS, "-o", program], check=True)
    subprocess.run([program], check=True)
    assert "torch" not in output("ldd", program)


def test_structures_lie_in_memory_as_c_lays_them_out(tmp_path):
    lines = []
    for name, structure in binding.STRUCTURES.items():
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        lines += [
            f'printf("%zu\\n", offsetof({name}, {field[0]}));' for field in structure._fields_
        ]
    head = '#include <stddef.h>\n#include <stdio.h>\n#include "abi.h"\n'
    source = head + "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    program = str(tmp_path / "program")
    subprocess.run([COMPILER, object_of(tmp_path, source), "-o", program], check=True)
    expected = []
    for structure in binding.STRUCTURES.values():
        expected.append(ctypes.sizeof(structure))
        expected += [getattr(structure, field[0]).offset for field in structure._fields_]
    assert list(map(int, output(program).split())) == expected


def test_threads_are_those_that_are_worth_waking():
    library = kernels()
    assert library.abele_threads(0, 0, 4) == 1
    assert library.abele_threads(2 * 16384, 0, 4) == 2
    assert library.abele_threads(16384, 960000, 4) == 2
    assert library.abele_threads(2**40, 2**40, 4) == 4
    assert library.abele_threads(2**40, 0, 0) == 1


def test_a_convolution_wakes_threads_sooner_where_they_have_samples_of_their_own():
    library = kernels()
    sizes = 1, 3, 3, 1, 1, 1, 1, 0, 1.0  # a channel, 3x3, steps and borders of one
    many, one = binding.Conv(64, 1, 31, 28, *sizes), binding.Conv(1, 1, 248, 224, *sizes)
    assert library.abele_conv_threads(many, 2) == 2
    assert library.abele_conv_threads(one, 2) == 1
    assert library.abele_conv_threads(many, 1) == 1


def test_a_call_without_memory_is_an_error():
    library = kernels()
    norm = binding.Norm(1, 2**58, 0.1, 1e-5, 1.0)
    with pytest.raises(MemoryError, match="abele_scale_shift found no memory"):
        library.abele_scale_shift(norm, None, None, None, None, 1)


def test_a_compiler_that_fails_is_named_and_quoted(tmp_path):
    broken = tmp_path / "broken.cpp"
    broken.write_text("#error this is not C++\n")
    with pytest.raises(CompilerError, match="could not be compiled") as caught:
        compiled(tmp_path, [broken])
    assert "this is not C++" in caught.value.log


@pytest.mark.parametrize("kind", sources.KINDS)
def test_kernels_of_one_kind_need_no_others(kind, tmp_path):
    build.compile_objects(COMPILER, instruction_set(), sources.KINDS[kind])
    objects = build.linkable(COMPILER, instruction_set(), sources.KINDS[kind])
    command = [COMPILER, "-shared", *THREADS, "-Wl,-z,defs", *objects]
    subprocess.run([*command, "-o", str(tmp_path / "kind.so")], check=True)


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "KERNELS", {"calls.cpp": 0.4})  # what compiles soon
    build.cache_folder.cache_clear()
    yield tmp_path
    build.cache_folder.cache_clear()


def test_the_library_is_compiled_once(cache_folder):
    assert build.missing_s(COMPILER, "here") > 0
    build.compile_objects(COMPILER, "here", [build.LIBRARY])
    assert build.missing_s(COMPILER, "here") == 0
    first = build.library(COMPILER, "here")
    stamp = first.stat().st_mtime_ns
    assert build.shared_library(COMPILER, "here").startswith(b"\x7fELF")
    assert build.library(COMPILER, "here") == first
    assert first.stat().st_mtime_ns == stamp
    made = {path.suffix for path in (cache_folder / "abele").iterdir()}
    assert made == {".so", ".objects"}


@pytest.fixture
def two_sources(cache_folder, monkeypatch):
    monkeypatch.setattr(build, "KERNELS", {"calls.cpp": 0.5, "updates.cpp": 0.25})
    return cache_folder / "abele"


def ended_in(source, monkeypatch):
    """Make the library in a process that ends while it compiles one of the sources."""
    make = build.make

    def one(making):
        if making.path.endswith(f"{source}.o"):
            raise KeyboardInterrupt
        make(making)

    with monkeypatch.context() as patch:
        patch.setattr(build, "make", one)
        with pytest.raises(KeyboardInterrupt):
            build.library(COMPILER, "here")


def test_what_a_run_has_compiled_before_it_ended_is_not_compiled_again(two_sources, monkeypatch):
    all_s = build.missing_s(COMPILER, "here")
    ended_in("updates.cpp", monkeypatch)
    assert build.missing_s(COMPILER, "here") == pytest.approx(all_s - 0.5)
    assert [each.name for each in two_sources.glob("*/*")] == ["calls.cpp.o"]
    make, names = build.make, []

    def noted(making):
        names.append(Path(making.path).name)
        make(making)

    monkeypatch.setattr(build, "make", noted)
    library = build.library(COMPILER, "here")
    assert names == ["updates.cpp.o", library.name]


def test_objects_are_compiled_one_by_one_and_used_by_the_library(two_sources):
    all_s = build.missing_s(COMPILER, "here")
    assert build.missing_s(COMPILER, "here", ["updates.cpp"]) == 0.25
    (path,) = build.linkable(COMPILER, "here", ["updates.cpp"])
    build.compile_objects(COMPILER, "here", ["updates.cpp"])
    assert build.missing_s(COMPILER, "here", ["updates.cpp"]) == 0
    assert build.missing_s(COMPILER, "here") == pytest.approx(all_s - 0.25)
    stamp = Path(path).stat().st_mtime_ns
    build.library(COMPILER, "here")
    assert Path(path).stat().st_mtime_ns == stamp


def test_objects_of_other_threads_are_other_files(monkeypatch):
    """A user may install clang's OpenMP later; one program has one kind of threads."""
    places = []
    for has in (True, False):
        monkeypatch.setattr(sources, "has_openmp", lambda path, has=has: has)
        places += build.linkable(COMPILER, "here", ["updates.cpp"])
    assert places[0] != places[1]


def test_what_is_missing_can_be_made_by_another_process(two_sources, tmp_path):
    build.compile_objects(COMPILER, "here", ["updates.cpp"])
    objects, (library,) = build.makings(COMPILER, "here")
    assert [Path(each.path).name for each in objects] == ["calls.cpp.o"]
    assert native._made([objects, [library]], tmp_path) is None
    assert build.missing_s(COMPILER, "here") == 0
    assert build.makings(COMPILER, "here") == [[]]
    assert not list(two_sources.rglob("*.partial"))
    assert build.shared_library(COMPILER, "here").startswith(b"\x7fELF")


def test_a_damaged_object_costs_compiling_all_again(two_sources, monkeypatch):
    ended_in("updates.cpp", monkeypatch)
    (kept,) = two_sources.glob("*/*")
    kept.write_bytes(b"cut off")
    with pytest.raises(CompilerError, match="could not be compiled"):
        build.library(COMPILER, "here")
    assert build.library(COMPILER, "here").is_file()


@pytest.mark.usefixtures("cache_folder")
def test_of_several_that_want_them_at_once_one_compiles(monkeypatch):
    make, calls = build.make, []

    def slowly(making):
        calls.append(making)
        time.sleep(0.2)
        make(making)

    monkeypatch.setattr(build, "make", slowly)
    with ThreadPoolExecutor(3) as pool:
        paths = {*pool.map(lambda _: build.library(COMPILER, "here"), range(3))}
    assert (len(paths), len(calls)) == (1, 2)  # an object, and the library


def test_a_cache_that_cannot_be_written_costs_only_time(cache_folder):
    (cache_folder / "abele").write_text("a file where the folder should be")
    with pytest.warns(RuntimeWarning, match="cannot be written: set XDG_CACHE_HOME"):
        assert Path(build.library(COMPILER, "here")).exists()


def test_what_a_call_could_not_have_does_not_spoil_the_next():
    library = kernels()
    x, scale, y = ((ctypes.c_float * 4)(*values) for values in ([1, 2, 3, 4], [2] * 4, [0] * 4))
    pointers = [ctypes.addressof(each) for each in (x, scale, scale, y)]
    for rows, channels in ((2, 2), (1, 2**58), (2, 2), (4, 1)):
        norm = binding.Norm(rows, channels, 0.1, 1e-5, 1.0)
        if channels > 4:
            with pytest.raises(MemoryError, match="found no memory"):
                library.abele_scale_shift(norm, *pointers, 1)
            continue
        library.abele_scale_shift(norm, *pointers, 1)
        assert list(y) == [4, 6, 8, 10]
