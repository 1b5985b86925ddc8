"""What every test can rely on: one thread, fixed seeds, a clean environment, and the targets."""

import functools
import gc
import logging
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy
import pytest
import torch

import poptorch  # noqa: F401  changes the environment when it is imported, so before any test
from abele import ExecutableCache, get_target, processor
from abele.compilation import estimates, start, verdict
from abele.runtime.proving import TakeOver
from abele.targets import ENVIRONMENT, NAMES, Target, candidates
from helpers import compiler_cache, properties, warm_python


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from what is printed now"
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help="also run what takes minutes: long, or compiled twice",
    )
    parser.addoption(
        "--real", action="store_true", help="also run what starts daemons of ssh and Slurm"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects no garbage among the tests, now and later: they are a million objects that stay.

    What stays of modules and caches is looked through a tenth as often as Python would: a third of
    a second each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], 100)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out minutes of tests unless asked for: long ones, and thorough ones compiled."""
    if not config.getoption("--real"):
        reason = "starts daemons of ssh and Slurm; scripts/test --real runs it"
        for item in items:
            if item.get_closest_marker("real"):
                item.add_marker(pytest.mark.skip(reason=reason))
    if config.getoption("--thorough"):
        return
    thorough = ("compiler", "thorough")
    left_out = [
        item
        for item in items
        if item.get_closest_marker("long") or all(map(item.get_closest_marker, thorough))
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    properties.load_profile()
    _seed_only_what_is_here()
    # Torch traces its compiler at debug level, thousands of lines in the report of a failure.
    logging.getLogger("torch.__trace").propagate = False
    # What the caller's shell insists on must not decide what a test tests.
    os.environ.pop(ENVIRONMENT, None)
    os.environ.pop(start.SWAP_AT, None)
    # Else the time at which compiled programs take over would decide the bits; tests of that ask.
    os.environ[start.ENVIRONMENT] = "wait"
    # The same holds for how fast programs run; tests of that bring a clock.
    os.environ[candidates.ENVIRONMENT] = candidates.RULES
    TakeOver.clock = staticmethod(lambda: 0.0)
    # Tracing sets this variable by itself; with a folder per run, runs cannot disturb each other.
    folder = tempfile.mkdtemp(prefix="abele-tests-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    # What stand-ins for compilers take is no measure of this machine.
    estimates.cache_folder = functools.partial(Path, folder)  # type: ignore[reportAttributeAccessIssue]
    verdict.cache_folder = functools.partial(Path, folder)  # type: ignore[reportAttributeAccessIssue]
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    _keep_compiled_code(config)
    if config.getoption("numprocesses", None):  # one server for the programs of all workers
        os.environ[warm_python.SHARED] = warm_python.python()


def _seed_only_what_is_here() -> None:
    """Leaves out devices that this machine lacks.

    Torch writes down where each was seeded from, in case one is used later: most of the time of a
    short test.
    """
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        if not kind.is_available():
            kind.manual_seed_all = lambda seed: None  # type: ignore[reportAttributeAccessIssue]


def _keep_compiled_code(config: pytest.Config) -> None:
    """Calls the C++ compiler through a cache of pytest's, unless the user has turned that off."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None or not config.pluginmanager.hasplugin("cacheprovider"):
        return
    folder = config.cache.mkdir("compiled")  # type: ignore[reportOptionalMemberAccess]
    if Path(compiler).parent == folder:
        return  # a worker inherits the variable from the process that started it
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    versions = said.stdout, torch.__version__, torch.version.git_version, processor.instructions()
    os.environ["CXX"] = str(compiler_cache.install(folder, compiler, str(versions)))


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Fails a test that leaves environment variables changed."""
    before = _variables()
    yield
    after = _variables()
    changed = {name for name, _ in before.items() ^ after.items()}
    for name in changed:
        os.environ.pop(name, None)
        os.environ |= {name: before[name]} if name in before else {}
    assert not changed, f"the test leaves these environment variables changed: {sorted(changed)}"


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def usable(name: str) -> Target:
    """The target called ``name``; skips the test where it cannot compile."""
    target = get_target(name)
    reason = target.cannot_compile()
    if reason is not None:
        pytest.skip(f"target {name}: {reason}")
    return target


TARGETS = [
    pytest.param(name, marks=pytest.mark.compiler if name == "cpu" else ())
    for name in NAMES
    if name != "null"
]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    """Each target that can compile here; the others are skipped with their reason."""
    return usable(request.param)


@pytest.fixture
def isolated_cache(tmp_path: Path) -> ExecutableCache:
    """An executable cache in a folder of its own, which does not exist yet."""
    return ExecutableCache(tmp_path / "executables")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return request.config.getoption("--update-golden")
