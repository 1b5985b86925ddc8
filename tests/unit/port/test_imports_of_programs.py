"""Imports of a program that is ported: what is not there is named, and nothing is written."""

import sys

import pytest

from abele.__main__ import main
from abele.port import files, imports

TRAINS = """\
import torch

net = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    loss = net(torch.ones(4, 3)).mean()
    loss.backward()
    opt.step()
"""


@pytest.fixture
def absent(tmp_path):
    """Writes files and names what the first of them, or their folder, imports and is not there."""

    def of(texts, folder=False):
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        script = tmp_path / next(iter(texts))
        place = tmp_path if folder else script.parent
        project = files.read(place if folder else script)
        missing = imports.missing(project, place)
        return [f"{'' if each.needed else 'maybe '}{each}" for each in missing]

    return of


THERE = {
    "Python's own": "import os.path, sys, winreg, msvcrt, collections.abc\nfrom os import path\n",
    "installed": "import torch.utils.data\nfrom torch.nn import functional\nimport torch.ops\n",
    "made when imported": "from torch.classes import anything\n",
    "ours": "import popdist.poptorch\nimport poptorch, sambaflow.samba\n",
    "a guard": "try:\n    import apex\nexcept ImportError:\n    apex = None\n",
    "suppressed": (
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import apex\n"
    ),
    "for types": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from apex import Thing\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", THERE)
def test_what_is_there_or_may_be_missing_is_not_named(name, absent):
    assert absent({"run.py": THERE[name]}) == []


MISSING = {
    "import apex.amp as amp\n": ["apex.amp (run.py:1)"],
    "import torch, apex, dali\n": ["apex (run.py:1)", "dali (run.py:1)"],
    "from apex import *\n": ["apex (run.py:1)"],
    "if __name__ == '__main__':\n    import apex\n": ["apex (run.py:2)"],
    "class A:\n    import apex\n": ["apex (run.py:2)"],
    "if torch.cuda.is_available():\n    import apex\n": ["maybe apex (run.py:2)"],
    "def log():\n    import wandb\n": ["maybe wandb (run.py:2)"],
    "try:\n    pass\nfinally:\n    import apex\n": ["apex (run.py:4)"],
}


@pytest.mark.parametrize("text", MISSING)
def test_what_is_not_there_is_named_with_its_line(text, absent):
    assert absent({"run.py": text}) == MISSING[text]


OWN = {
    "a file": {"run.py": "import data\n", "data.py": ""},
    "a circle": {"run.py": "import a\n", "a.py": "import b\n", "b.py": "import a, run\n"},
    "a package": {
        "run.py": "import nets.small\nfrom nets import Net, small\n",
        "nets/__init__.py": "from .small import Net\n",
        "nets/small.py": "from . import deep\nfrom .deep.er import f\nfrom .. import data\n",
        "nets/deep/__init__.py": "",
        "nets/deep/er.py": "from ..small import Net\nfrom ... import data\n",
        "data.py": "",
    },
    "without __init__": {
        "run.py": "import space.inner.mod\nfrom space import inner\nfrom space.inner import mod\n",
        "space/inner/mod.py": "from . import other\n",
        "space/inner/other.py": "",
    },
    "a name of the package itself": {
        "run.py": "from nets import VERSION\nfrom nets.sub import anything\n",
        "nets/__init__.py": "VERSION = 1\n",
        "nets/sub/__init__.py": "from .made import *\n",
        "nets/sub/made.py": "",
    },
    "the name of an installed one": {"run.py": "import statistics, six\n", "six.py": ""},
}


@pytest.mark.parametrize("name", OWN)
def test_files_of_the_program_are_there(name, absent):
    assert absent(OWN[name]) == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"run.py": "import nets.large\n", "nets/__init__.py": ""}, "nets.large (run.py:1)"),
        ({"run.py": "import nets.large\n", "nets.py": ""}, "nets.large (run.py:1)"),
        ({"run.py": "from . import data\n"}, ".data (run.py:1)"),
        ({"run.py": "from .data import images\n"}, ".data (run.py:1)"),
        (
            {"run.py": "import a.b\n", "a/__init__.py": "", "a/b.py": "from .c.d import e\n"},
            ".c.d (a/b.py:1)",
        ),
    ],
)
def test_a_file_that_the_program_lacks_is_named(texts, expected, absent):
    assert absent(texts) == [expected]


def test_what_is_above_the_folder_of_the_program_is_not_ported_with_it(absent, tmp_path, capsys):
    texts = {"jobs/run.py": "from ..common import data\n" + TRAINS, "common.py": "data = 1\n"}
    assert absent(texts) == ["..common (run.py:1)"]
    assert absent(texts, folder=True) == []
    assert main(["port", str(tmp_path / "jobs" / "run.py"), "--scan"]) == 1
    said = "..common (run.py:1): above the folder that is ported; port the folder that has both."
    assert said in capsys.readouterr().err


def test_files_of_a_folder_find_those_beside_them(absent):
    texts = {"a/run.py": "import helper\n", "a/helper.py": "", "b/run.py": "import helper\n"}
    assert absent(texts, folder=True) == ["helper (b/run.py:1)"]


def test_a_package_brings_what_it_runs_when_it_is_imported(tmp_path):
    (tmp_path / "nets" / "deep").mkdir(parents=True)
    (tmp_path / "run.py").write_text("import nets.deep.er\n")
    for name in ("nets/__init__.py", "nets/deep/__init__.py", "nets/deep/er.py", "__init__.py"):
        (tmp_path / name).write_text("")
    names = [each.name for each in files.read(tmp_path / "run.py").sources]
    assert names == ["run.py", "nets/__init__.py", "nets/deep/__init__.py", "nets/deep/er.py"]


def port(capsys, *arguments):
    status = main(["port", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_program_whose_imports_are_missing_is_not_ported(tmp_path, capsys):
    script, out = tmp_path / "run.py", tmp_path / "new"
    script.write_text("import apex\nimport dali\n" + TRAINS)
    for way in (["-o", out], ["--scan"], ["-o", out, "--check", "3"]):
        status, printed, said = port(capsys, script, *way)
        assert status == 1
        assert not printed
        assert said == (
            "abele port: 2 imports are neither a file of the program nor installed: apex "
            "(run.py:1), dali (run.py:2). Install what is missing, or port without it: "
            "--allow-missing-imports.\n"
        )
        assert not out.exists()


def test_a_program_is_ported_where_its_packages_are_not_if_somebody_says_so(tmp_path, capsys):
    script, out = tmp_path / "run.py", tmp_path / "new"
    script.write_text("import apex\n" + TRAINS)
    status, printed, _ = port(capsys, script, "-o", out, "--allow-missing-imports")
    assert status == 0
    assert printed.startswith("not there, and not needed to port: apex (run.py:1)\n")
    assert "poptorch.trainingModel" in (out / "run.py").read_text()


def test_what_only_a_function_imports_is_named_and_no_hindrance(tmp_path, capsys):
    script = tmp_path / "run.py"
    script.write_text(TRAINS + "\n\ndef log():\n    import wandb\n")
    status, printed, _ = port(capsys, script, "--scan")
    assert status == 0
    assert "not there, and not needed to port: wandb (run.py:13)\n" in printed


def test_a_program_that_looks_in_other_folders_is_told_how_to_say_so(tmp_path, capsys, monkeypatch):
    script = tmp_path / "run.py"
    script.write_text("import sys\nsys.path.append('elsewhere')\nimport helper\n")
    said = port(capsys, script, "--scan")[2]
    assert "The program changes sys.path (run.py:2), where it finds more; name these" in said
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "helper.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "elsewhere")])
    assert port(capsys, script, "--scan")[0] == 3  # nothing of it would run


def test_many_missing_imports_are_counted(tmp_path, capsys):
    script = tmp_path / "run.py"
    script.write_text("".join(f"import not_there_{number}\n" for number in range(12)))
    said = port(capsys, script, "--scan")[2]
    assert said.startswith("abele port: 12 imports are neither")
    assert "not_there_7 (run.py:8), and 4 more. Install" in said
