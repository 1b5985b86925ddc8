"""The command: what it writes, what it says, and what it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from abele.__main__ import main
from abele.port import files
from abele.port.rules import CODES

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = PROGRAMS / "pairs.py"


def ported(capsys, *arguments):
    status = main(["port", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_port_is_written_beside_with_its_record_diff_and_page(tmp_path, capsys):
    status, out, _ = ported(capsys, SCRIPT, "-o", tmp_path / "new")
    assert status == 0
    assert "The program is ported.\nIt leaves out the rows of every epoch that fill no batch" in out
    assert "ABP207 modified: a last, shorter batch is left out" in out
    assert "nothing is left to do" not in out
    written = {each.name for each in (tmp_path / "new").iterdir()}
    assert written == {"pairs.py", "port.diff", "port.json", "port.txt"}
    record = json.loads((tmp_path / "new" / "port.json").read_text())
    assert record["verdict"] == "modified"
    assert {each["code"] for each in record["findings"]} <= set(CODES)
    lines = SCRIPT.read_text().splitlines()
    for each in record["findings"]:
        assert lines[each["line"] - 1].strip() == each["text"]
        assert each["docs"] == f"docs/reference/port_codes.md#{each['code'].lower()}"
    patch = (tmp_path / "new" / "port.diff").read_text()
    again = tmp_path / "again"
    again.mkdir()
    (again / "pairs.py").write_text(SCRIPT.read_text())
    subprocess.run(["patch", "-s", "-p1"], input=patch, text=True, cwd=again, check=True)
    assert (again / "pairs.py").read_text() == (tmp_path / "new" / "pairs.py").read_text()


def test_every_changed_line_of_the_program_has_a_finding(tmp_path, capsys):
    for script in PROGRAMS.glob("*.py"):
        folder = tmp_path / script.stem
        ported(capsys, script, "-o", folder)
        record = json.loads((folder / "port.json").read_text())
        said = {each["line"] for each in record["findings"]}
        old = 0
        for line in (folder / "port.diff").read_text().splitlines():
            if line.startswith("@@"):
                old = int(line.split("-")[1].split(",")[0].split(" ")[0])
            elif line.startswith("-") and not line.startswith("---"):
                assert old in said or not line[1:].strip(), f"{script.name}:{old}: {line}"
                old += 1
            elif line.startswith(" "):
                old += 1


def test_a_scan_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = ported(capsys, SCRIPT, "--scan", "--verbose")
    assert status == 0
    assert "pairs.py:47:9: ABP302 modified: the call of the training model does this" in out
    assert not list(tmp_path.iterdir())


def test_a_script_brings_the_files_that_it_imports(tmp_path, capsys):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text("from .small import Net\n")
    (tmp_path / "nets" / "small.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n"
    )
    (tmp_path / "unused.py").write_text("print(1)\n")
    (tmp_path / "run.py").write_text(
        "import torch\nfrom nets import Net\n\nnet = Net(3, 2)\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    opt.zero_grad()\n    loss = net(torch.ones(4, 3)).mean()\n"
        "    loss.backward()\n    opt.step()\n"
    )
    status, out, _ = ported(capsys, tmp_path / "run.py", "-o", tmp_path / "new")
    assert status == 0
    assert "3 files, 1 changed" in out
    assert (tmp_path / "new" / "nets" / "small.py").exists()
    assert not (tmp_path / "new" / "unused.py").exists()
    status, out, _ = ported(capsys, tmp_path / "run.py", "-o", tmp_path / "new")
    assert status == 0  # an earlier port is replaced


def test_a_folder_is_ported_without_an_earlier_port_in_it(tmp_path, capsys):
    (tmp_path / "run.py").write_text("x = 1\nx = x\nx\n")
    for _ in range(2):
        status, out, _ = ported(capsys, tmp_path, "-o", tmp_path / "ported")
        assert status == 3
        assert "1 file, 0 changed" in out  # also statements that do nothing stay
    _, out, _ = ported(capsys, tmp_path / "ported", "--scan")
    assert "1 file, 0 changed" in out


NO_PYTHON = "this is no Python that can be read"
BAD = {
    "print 'hello'\n": rf"run.py:1:1: {NO_PYTHON}",
    "def f(:\n": rf"run.py:1:7: {NO_PYTHON} \(3.*: invalid syntax\): def f\(:",
    "x = (1,\ny = 2\n": rf"run.py:1:5: {NO_PYTHON} \(3.*: '\(' was never closed\): x = \(1,",
    "return 1\n": rf"run.py:1:1: {NO_PYTHON} \(3.*: 'return' outside function\): return 1",
    f"x = {'(' * 300}1{')' * 300}\n": f"run.py:1:.*{NO_PYTHON}.*too many nested parentheses",
    '{"cells": [], "nbformat": 4}\n': "run.py is a notebook. Save it as a script first",
    "x = '\0'\n": f"run.py.*({NO_PYTHON}|cannot be read).*null byte",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:8].strip())
def test_what_is_no_program_gets_a_sentence_and_nothing_is_written(text, tmp_path, capsys):
    (tmp_path / "run.py").write_text(text)
    status, out, err = ported(capsys, tmp_path / "run.py", "-o", tmp_path / "new")
    assert status == 1
    assert not out
    assert err.count("\n") == 1

    assert re.search(f"^abele port: {BAD[text]}", err), err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "deep", [" + ".join(["x"] * 4000), " + ".join(["x"] * 20000), "x" + ".f()" * 3000]
)
def test_what_is_nested_too_deeply_is_named(deep, tmp_path, capsys):
    (tmp_path / "run.py").write_text(f"x = 1\ny = {deep}\n")
    status, out, err = ported(capsys, tmp_path / "run.py", "-o", tmp_path / "new")
    assert (status, out) == (1, "")
    assert re.search("^abele port: a statement of .*run.py is nested too deeply: a sum of", err)
    assert not (tmp_path / "new").exists()


def test_what_is_nested_less_deeply_is_ported(tmp_path, capsys):
    deep = " + ".join(["x"] * 240)
    (tmp_path / "run.py").write_text(f"{SCRIPT.read_text()}\n\nx = 1\ny = {deep}\n")
    status, out, _ = ported(capsys, tmp_path / "run.py", "-o", tmp_path / "new")
    assert status == 0
    assert "1 file, 1 changed" in out


def test_a_file_that_is_imported_is_named_where_it_is_no_python(tmp_path, capsys):
    (tmp_path / "run.py").write_text("import lib\n")
    (tmp_path / "lib.py").write_text("x = 1\nprint 'x'\n")
    status, _, err = ported(capsys, tmp_path / "run.py", "-o", tmp_path / "new")
    assert status == 1
    assert err.startswith("abele port: lib.py:2:1: this is no Python that can be read")
    assert not (tmp_path / "new").exists()


def test_a_file_of_a_folder_that_is_no_python_does_not_stop_the_others(tmp_path, capsys):
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "run.py").write_text(SCRIPT.read_text())
    (tmp_path / "program" / "look.py").write_text("x = 1\n%matplotlib inline\n")
    status, out, err = ported(capsys, tmp_path / "program", "-o", tmp_path / "new")
    assert (status, "1 file, 1 changed" in out) == (0, True)
    assert re.search(f"^abele port: look.py:2:1: {NO_PYTHON}.*%matplotlib inline. This file", err)
    assert {path.name for path in (tmp_path / "new").glob("*.py")} == {"run.py"}


@pytest.mark.parametrize("way", ["crlf", "tabs", "mark", "latin-1"])
def test_ends_of_lines_and_encodings_stay(way, tmp_path, capsys):
    text = SCRIPT.read_text().encode()
    text = {
        "crlf": text.replace(b"\n", b"\r\n"),
        "tabs": text.replace(b"    ", b"\t"),
        "mark": b"\xef\xbb\xbf" + text,
        "latin-1": b"# -*- coding: latin-1 -*-\nname = 'caf\xe9'\n" + text,
    }[way]
    (tmp_path / "pairs.py").write_bytes(text)
    status, _, _ = ported(capsys, tmp_path / "pairs.py", "-o", tmp_path / "new")
    assert status == 0
    lines = (tmp_path / "new" / "pairs.py").read_bytes().splitlines(keepends=True)
    assert [line.endswith(b"\r\n") for line in lines] == [way == "crlf"] * len(lines)
    kept = [line for line in text.splitlines(keepends=True) if line in lines]
    assert len(kept) > 50
    assert kept[:2] == text.splitlines(keepends=True)[:2]
    compile(b"".join(lines), "pairs.py", "exec")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.py", "--scan"], "there is no file missing.py"),
        ([".", "--scan"], r"there is no Python file in \."),
        (["note.ipynb", "--scan"], "note.ipynb is a notebook. Save it as a script first"),
        (["run.py", "-o", "."], r"\. has the program itself; give another folder"),
        (["run.py", "-o", "full"], "full has other files; give a folder that is empty"),
        (["run.py", "-o", "run.py"], "run.py is a file; give a folder that is empty"),
        (["run.py", "--scan", "--check", "3"], "--scan writes no port that --check could run"),
        (["run.py", "-o", "new", "--", "-x"], "arguments after -- are for --check"),
    ],
)
def test_wrong_input_teaches(arguments, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "." not in arguments[:1]:
        Path("run.py").write_text("print(1)\n")
        Path("note.ipynb").write_text("{}")
        Path("full").mkdir()
        Path("full", "other").write_text("")
    status, _, err = ported(capsys, *arguments)
    assert status == 1

    assert re.search(f"^abele port: {sentence}", err), err


def test_a_package_brings_what_it_runs_when_it_is_imported(tmp_path):
    (tmp_path / "nets" / "deep").mkdir(parents=True)
    (tmp_path / "run.py").write_text("import nets.deep.er\n")
    for name in ("nets/__init__.py", "nets/deep/__init__.py", "nets/deep/er.py", "__init__.py"):
        (tmp_path / name).write_text("")
    names = [each.name for each in files.read(tmp_path / "run.py").sources]
    assert names == ["run.py", "nets/__init__.py", "nets/deep/__init__.py", "nets/deep/er.py"]


def test_imports_that_go_in_a_circle_are_read_once(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_text("import a\n")
    status, out, _ = ported(capsys, tmp_path / "a.py", "--scan")
    assert status == 3
    assert "2 files, 0 changed" in out
    assert "nothing of this program would run on abele" in out


@pytest.mark.parametrize("way", [["--scan"], ["-o", "ported"]])
def test_no_port_waits_for_torch_unless_programs_run(way, tmp_path):
    program = Path(__file__).parent / "rules" / "training.in.py"
    run = "import sys; from abele.__main__ import main; status = main(sys.argv[1:]); "
    run += "assert 'torch' not in sys.modules; sys.exit(status)"
    command = [sys.executable, "-c", run, "port", str(program), *way]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
