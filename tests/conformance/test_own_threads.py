"""Kernels share their work, also where a compiler has no OpenMP and where threads are few."""

import ctypes
import importlib
import shutil
import subprocess
from unittest import mock

import pytest

from abele.kernels import self_test, sources
from abele.targets.cpu.emitted import headers
from helpers.kernel_library import COMPILER, NEEDS_COMPILER, compiled

pytestmark = NEEDS_COMPILER

of_target = importlib.import_module("abele.targets.cpu.compiler")  # a function has its name, too

_PROGRAM = r"""
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>
#include "threads.h"

using abele::on_threads, abele::start_threads;

// How many of `calls` of four threads did not run each part once, or did not meet.
int wrong(int calls, bool together) {
  int faults = 0;
  for (int call = 0; call < calls; ++call) {
    std::atomic<int> ran[4] = {}, before{0};
    int sizes[4] = {};
    const auto work = [&](int thread, int size) {
      ++ran[thread], ++before, sizes[thread] = size;
      if (!together) return;
      abele::meet();
      if (before != size) ran[thread] = 9;
      abele::meet();
    };
    together ? start_threads(4, work, true) : on_threads(4, work);
    for (int i = 0; i < sizes[0]; ++i) faults += ran[i] != 1 || sizes[i] != sizes[0];
    faults += sizes[0] != 4;
  }
  return faults;
}

// How many threads compute five parts, each of them once; 9 if not.
int working(int limit) {
  abele_usable_threads = limit;
  std::mutex lock;
  std::set<std::thread::id> threads;
  int parts = 0;
  on_threads(5, [&](int thread, int size) {
    std::lock_guard<std::mutex> held(lock);
    threads.insert(std::this_thread::get_id());
    parts += size == 5 ? 1 << 4 * thread : 0;
  });
  abele_usable_threads = INT_MAX;
  return parts == 0x11111 ? static_cast<int>(threads.size()) : 9;
}

int main() {
  std::atomic<int> faults{wrong(20000, false)};
  faults += wrong(500, true);
  std::thread other([&] { faults += wrong(2000, false); });  // two callers at a time
  faults += wrong(2000, false);
  other.join();
  std::atomic<int> nested{0};
  on_threads(2, [&](int, int) { on_threads(2, [&](int thread, int) { nested += 1 + thread; }); });
  faults += nested != 6;
  faults += working(1) != 1 || working(0) != 1 || working(3) > 3 || working(9) > 5;
  abele::Index sum = 0;
  std::atomic<abele::Index> total{0};
  abele::for_each(1000, 3, [&](abele::Index i) { total += i; });
  for (abele::Index i = 0; i < 1000; ++i) sum += i;
  faults += total != sum;
#ifdef _OPENMP
  return std::printf("%d 0\n", faults.load()) < 0;  // a child has no threads of GNU's library
#endif
  const pid_t child = fork();
  if (child == 0) _exit(wrong(100, false) != 0);
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("%d %d\n", faults.load(), status);
}
"""


@pytest.mark.parametrize("threads", [("-std=c++20", "-pthread"), ("-std=c++17", "-fopenmp")])
def test_every_part_runs_once_whoever_runs_it(threads, tmp_path):
    if "-fopenmp" in threads and not sources.has_openmp(COMPILER):
        pytest.skip("the compiler has no OpenMP")
    (tmp_path / "main.cpp").write_text(_PROGRAM)
    program = str(tmp_path / "main")
    flags = [*threads, "-O1", "-iquote", str(sources.FOLDER)]
    subprocess.run([COMPILER, *flags, str(tmp_path / "main.cpp"), "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["0", "0"]


@pytest.mark.parametrize(
    "kinds",
    [("products", "adam"), pytest.param(("convolutions", "winograd"), marks=pytest.mark.thorough)],
)
def test_kernels_without_openmp_pass_their_self_test(kinds, tmp_path):
    names = sorted({source for kind in kinds for source in sources.KINDS[kind]})
    library = str(tmp_path / "kernels.so")
    with mock.patch.object(sources, "has_openmp", return_value=False):
        flags = [each for each in sources.fitting(COMPILER, sources.FLAGS) if each != "-O3"]
        objects = compiled(tmp_path, names, flags)
        subprocess.run(sources.linking(COMPILER, objects, library), check=True)
    needed = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
    assert "gomp" not in needed
    assert self_test.problem(ctypes.CDLL(library)) is None


def test_a_compiler_without_openmp_gets_other_flags(tmp_path):
    plain = tmp_path / "c++"
    plain.write_text('#!/bin/sh\nfor a; do [ "$a" = -fopenmp ] && exit 1; done\nexit 0\n')
    plain.chmod(0o755)
    assert not sources.has_openmp(str(plain))
    command = sources.compiling(str(plain), "adam.cpp", sources.FLAGS)
    assert "-fopenmp" not in command
    assert "-std=c++17" not in command
    assert "-std=c++20" in command
    assert sources.has_openmp(COMPILER) == ("-fopenmp" in sources.fitting(COMPILER, sources.FLAGS))


def test_system_headers_do_not_find_ours(tmp_path):
    """The <cmath> of libc++ includes <math.h>."""
    source = tmp_path / "main.cpp"
    source.write_text('#include <math.h>\n#include "losses.h"\n')
    command = [COMPILER, "-std=c++17", *headers.INCLUDES, "-M", str(source)]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "/usr/include/math.h" in read
    assert str(sources.FOLDER / "losses.h") in read


def test_the_compiler_of_ziglang_is_found_last(tmp_path, monkeypatch):
    package = tmp_path / "ziglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "zig").write_text('#!/bin/sh\necho "$@"\n')
    (package / "zig").chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(of_target, "cache_folder", lambda: tmp_path)
    of_target._zig.cache_clear()
    monkeypatch.delenv("CXX", raising=False)
    try:
        assert of_target.compiler() == (shutil.which("g++") or shutil.which("clang++"))
        monkeypatch.setenv("PATH", "/nowhere")
        found = of_target.compiler()
        assert found is not None
        monkeypatch.setenv("CXX", "missing")
        assert of_target.compiler() is None  # the user's choice is not replaced
    finally:
        of_target._zig.cache_clear()
    monkeypatch.undo()
    said = subprocess.run([found, "-march=x86-64-v3", "a b"], capture_output=True, text=True)
    assert said.stdout == "c++ -march=x86_64_v3 a b\n"
