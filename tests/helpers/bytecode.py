"""Bytecode of tests and sources, which the workers of a first run write in parallel."""

import contextlib
import importlib.util
import py_compile
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).parents[2]


def write_share(config: pytest.Config) -> None:
    """Write the bytecode of every n-th file, as one of n workers.

    Each worker imports all test files, whose asserts take nine seconds to rewrite.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    files = sorted(path for folder in map(Path, config.args) for path in folder.rglob("test_*.py"))
    if files:  # not for the parts of a run
        files += sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/helpers/*.py")])
    for path in files[int(worker["workerid"][2:]) :: worker["workercount"]]:
        with contextlib.suppress(OSError, SyntaxError):  # its import says what is wrong
            if path.name.startswith("test_"):
                _rewrite(path.absolute(), config)
            elif not Path(importlib.util.cache_from_source(path)).exists():
                py_compile.compile(str(path))


def _rewrite(path: Path, config: pytest.Config) -> None:
    """Write the bytecode of a test file with its asserts rewritten, as pytest does."""
    folder = rewrite.get_cache_dir(path)
    kept = folder / (path.stem + rewrite.PYC_TAIL)
    if rewrite.try_makedirs(folder) and rewrite._read_pyc(path, kept) is None:
        status, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, status, kept)
