"""Wheels bring compiled kernels: what ``hatch_build.py`` compiles, and that they are used."""

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from abele import processor
from abele.kernels import packaged, sources

ROOT = Path(__file__).parents[2]
COMPILER = sources.compiler()
LEVEL = packaged.level()
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
needs_level = pytest.mark.skipif(LEVEL is None, reason="no level has kernels ahead")


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hook_and_package_agree_on_names(hook):
    assert (hook.LIST, hook.LIBRARY) == (packaged.LIST, packaged.LIBRARY)


def test_what_the_hook_reads_needs_no_torch(hook):
    apart = hook.module(ROOT, "kernels/sources.py")
    assert apart.fingerprint() == sources.fingerprint()
    assert hook.module(ROOT, "processor.py").listed() == processor.listed()


@pytest.mark.parametrize(
    ("here", "asked", "levels"),
    [
        ("x86-64-v3", None, ["x86-64-v3"]),
        (None, None, []),
        ("x86-64-v4", "none", []),
        (None, "x86-64-v3, x86-64-v4", ["x86-64-v3", "x86-64-v4"]),
    ],
)
def test_a_wheel_is_for_this_machine_unless_levels_are_asked_for(hook, here, asked, levels):
    assert hook.wanted(sources, here, asked) == levels


def test_levels_that_do_not_exist_are_refused(hook):
    with pytest.raises(ValueError, match="'x86-64-v9', but has to be of none, x86-64-v4, x86-64"):
        hook.wanted(sources, None, "x86-64-v9")


def test_a_wheel_is_for_one_architecture(hook):
    assert {*map(sources.architecture, ("x86-64-v3", "x86-64-v4"))} == {"x86_64"}
    assert sources.architecture("armv8.2-a") == "aarch64"
    with pytest.raises(ValueError, match="one wheel is for one architecture"):
        hook.wanted(sources, None, "x86-64-v4,armv8.2-a")


def test_processors_of_arm_have_a_level():
    listed = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm"
    assert sources.level("aarch64", listed.split()) == "armv8.2-a"
    assert sources.level("aarch64", ["fp", "asimd", "evtstrm", "crc32", "cpuid"]) is None


class Messages(list):
    """Hatchling's application, as the hook knows it."""

    display_info = display_warning = list.append


def built(hook, monkeypatch, version="standard", **compiling):
    """Let the hook work with few sources; returns what it tells hatchling, and its messages.

    The pages of the documentation are in ``made.pages``, not in what hatchling is told.
    """
    few = SimpleNamespace(
        **{**vars(sources), "KERNELS": {"calls.cpp": 0.4}, "level": lambda *_: LEVEL, **compiling}
    )
    monkeypatch.setattr(hook, "module", lambda root, path: few if "sources" in path else processor)
    messages, data = Messages(), {"force_include": {}}
    made = object.__new__(hook.CustomBuildHook)
    monkeypatch.setattr(type(made), "root", str(ROOT), raising=False)
    monkeypatch.setattr(type(made), "app", messages, raising=False)
    made.initialize(version, data)
    forced = data["force_include"]
    pages = [path for path, place in forced.items() if place.startswith("abele/_docs/")]
    made.pages = {path: forced.pop(path) for path in pages}
    return made, data, messages


@pytest.mark.compiler
@needs_compiler
@needs_level
def test_kernels_are_compiled_and_listed(hook, monkeypatch):
    made, data, _ = built(hook, monkeypatch)
    ((folder, place),) = data.pop("force_include").items()
    assert place == "abele/kernels/compiled"
    tag = f"py3-none-linux_{sources.architecture(LEVEL)}"
    assert data == {"pure_python": False, "tag": tag}
    monkeypatch.setattr(sources, "KERNELS", {"calls.cpp": 0.4})
    monkeypatch.setattr(packaged, "FOLDER", Path(folder))
    packaged._usable.cache_clear()
    assert packaged.folder() == Path(folder, LEVEL)
    made.finalize("standard", {}, "a.whl")
    assert not Path(folder).exists()


def test_editable_installations_compile_when_kernels_are_needed(hook, monkeypatch):
    made, data, messages = built(hook, monkeypatch, "editable")
    assert (data, messages, made.pages) == ({"force_include": {}}, [], {})


def test_without_a_compiler_the_wheel_brings_none(hook, monkeypatch):
    made, data, messages = built(hook, monkeypatch, compiler=lambda: None)
    assert data == {"force_include": {}}
    assert set(made.pages) == {str(path) for path in (ROOT / "docs").rglob("*.md")}
    assert made.pages[str(ROOT / "docs/reference/ops.md")] == "abele/_docs/reference/ops.md"
    assert messages == ["This wheel brings no compiled kernels."]


def test_a_compiler_that_fails_costs_a_message_unless_levels_are_asked_for(hook, monkeypatch):
    fails = {"compiler": lambda: sys.executable, "level": lambda *_: "x86-64-v3"}
    _, data, messages = built(hook, monkeypatch, **fails)
    assert data == {"force_include": {}}
    assert "brings no compiled kernels: " in messages[-1]
    monkeypatch.setenv(hook.CHOICE, "x86-64-v3")
    with pytest.raises(RuntimeError, match=r"ABELE_WHEEL_KERNELS=x86-64-v3: .*failed"):
        built(hook, monkeypatch, **fails)


@pytest.mark.compiler
@needs_compiler
@needs_level
def test_wheels_for_linux_are_made_there(hook, monkeypatch):
    monkeypatch.setattr(hook.platform, "system", lambda: "Darwin")
    monkeypatch.setenv(hook.CHOICE, "x86-64-v3")
    with pytest.raises(RuntimeError, match="compiled ahead on Linux alone"):
        built(hook, monkeypatch)


_TRAINS = """
import sys; sys.path.insert(0, sys.argv[1])
import abele, poptorch, torch
from abele.kernels import packaged
assert abele.__file__.startswith(sys.argv[1]), abele.__file__
assert packaged.folder() is not None
class Network(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.Sequential(*layers)
    def forward(self, x):
        y = self.layers(x)
        return y, poptorch.identity_loss((y * y).sum(), "sum")
small = Network(torch.nn.Linear(300, 300), torch.nn.Softmax(1)), torch.randn(64, 300)
images = Network(torch.nn.Conv2d(8, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3))
model, x = small if sys.argv[2] == "small" else (images, torch.randn(1, 8, 256, 256))
options = poptorch.Options().showCompilationProgressBar(False)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001)
training = poptorch.trainingModel(model, options, optimizer)
training(x)
print(training.target, training.build_record.fallback, *training.build_record.lowerings.values())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The packages of a wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("abele-*-py3-none-linux_*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.long
@pytest.mark.compiler
@needs_compiler
@needs_level
@pytest.mark.parametrize(
    ("network", "environment", "lowering"),
    [
        ("small", {"ABELE_LOWERING": "emitted"}, "emitted"),
        ("images", {"ABELE_LOWERING": "op_by_op"}, "op_by_op"),
        ("images", {"CXX": "no-compiler", "ABELE_LOWERING": ""}, "op_by_op"),
    ],
)
def test_programs_run_kernels_of_a_wheel(installed, tmp_path, network, environment, lowering):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "ABELE_START": "wait", **environment}
    command = [sys.executable, "-c", _TRAINS, str(installed), network]
    done = subprocess.run(command, check=True, env=env, capture_output=True, text=True)
    assert re.match(f"cpu None .*{lowering}", done.stdout)
    warned = "kernels that abele's package brings: no C++ compiler was found" in done.stderr
    assert warned is ("CXX" in environment)
    assert not list(tmp_path.rglob("*.cpp.o"))
    assert not list(tmp_path.rglob("abele_shared_*"))
