"""The command ``abele doctor``, and warnings about misspelt environment variables."""

import ast
import json
import re
import warnings
from pathlib import Path

import pytest

from abele import __main__, doctor, variables
from abele.kernels import sources

ROOT = Path(__file__).parents[2]
CONSTANT = re.compile("ABELE_[A-Z_]+")


@pytest.fixture
def environment(monkeypatch):
    """The environment, without variables of abele."""
    for name in variables.unknown(doctor.os.environ) | variables.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor.processor, "quota", lambda: None)
    return monkeypatch


@pytest.mark.compiler
def test_a_whole_installation_needs_no_attention(environment, capsys):
    environment.setenv("ABELE_RUN_SECRET", "12345")
    assert __main__.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  compiler +/.*\+\+", text, re.MULTILINE)
    assert re.search(r"^  default +cpu", text, re.MULTILINE)
    assert re.search(r"^  ABELE_RUN_SECRET +\(set\)$", text, re.MULTILINE)
    assert text.endswith("Nothing needs attention.\n")
    # A line is as long as the path that it has.
    assert max(len(line) for line in text.splitlines() if "/" not in line) <= 100


def test_what_is_missing_comes_with_advice(environment, capsys):
    environment.setenv("CXX", "/missing/g++")
    environment.setenv("ABELE_TARGT", "cpu")
    environment.setenv("ABELE_FURTHER", "1")
    assert __main__.main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["compiling"]["compiler"] == "none"
    assert found["variables"] == dict.fromkeys(
        ("ABELE_FURTHER", "ABELE_TARGT"), "no variable of abele: it has no effect"
    )
    advice = {each["name"]: each["advice"] for each in found["advice"]}
    assert "looked for /missing/g++ on PATH" in advice["compiler"]
    assert advice["ABELE_TARGT"] == "Did you mean ABELE_TARGET?"
    assert "ABELE_FURTHER" not in advice


@pytest.mark.parametrize(("cores", "quota", "useful"), [(8, 1.5, 2), (1, None, 1), (1, 4.0, 1)])
def test_more_threads_than_cores_or_their_time_are_advice(
    cores, quota, useful, environment, capsys
):
    environment.setattr(doctor.processor, "cores", lambda: cores)
    environment.setattr(doctor.processor, "quota", lambda: quota)
    environment.setattr(doctor.torch, "get_num_threads", lambda: 8)
    assert __main__.main(["doctor"]) == 1
    said = capsys.readouterr().out
    limit = f"; the container has the time of {quota:g}" if quota else ""
    assert f"{cores} usable by this process; torch uses 8{limit}\n" in said
    assert f"- cores: Set OMP_NUM_THREADS={useful}: more threads wait for each other." in said


def test_a_target_that_does_not_exist_is_advice(environment, capsys):
    environment.setenv("ABELE_TARGET", "gpu")
    assert __main__.main(["doctor"]) == 1
    assert "- default: Target 'gpu' does not exist. Known" in capsys.readouterr().out


def test_a_home_that_cannot_be_written_is_advice(environment, capsys, tmp_path):
    (tmp_path / "file").touch()
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    environment.setattr(doctor.build, "cache_folder", doctor.build.cache_folder.__wrapped__)
    assert __main__.main(["doctor"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"{tmp_path}/file/abele cannot be written: set XDG_CACHE_HOME" in said


@pytest.mark.parametrize(
    ("torch", "vision", "wrong"),
    [
        ("2.13.0+cpu", "0.28.0", True),
        ("2.13.0+cpu", "0.28.0+cpu", False),
        ("2.13.0+cu130", "0.28.0", False),
        ("2.13.0", "0.28.0", False),
        ("2.13.0+cpu", None, False),
    ],
)
def test_a_torchvision_that_does_not_import_has_a_command(monkeypatch, torch, vision, wrong):
    monkeypatch.setattr(doctor.torch, "__version__", torch)
    monkeypatch.setattr(doctor, "_version", lambda package: vision)
    advice = [each.advice for each in doctor._vision()]
    assert len(advice) == wrong
    page = (ROOT / "docs" / "loading.md").read_text()
    for each in advice:  # the command of the page, whose rest is said around it
        command = each.partition(": ")[2]
        assert f"\n{command}\n" in page
        assert "--force-reinstall torch==2.13.0 torchvision" in command


def test_misspelt_variables_are_said_once(environment):
    environment.setenv("ABELE_LOWERINGS", "emitted")
    environment.setenv("ABELE_SHARED_DATA", "data")
    variables.warn_of_misspelt.cache_clear()
    with pytest.warns(
        RuntimeWarning, match="ABELE_LOWERINGS has no .* mean ABELE_LOWERING"
    ) as said:
        variables.warn_of_misspelt()
    assert len(said) == 1
    with warnings.catch_warnings(action="error"):
        variables.warn_of_misspelt()


def test_the_table_has_the_variables_that_the_source_names():
    header = set(CONSTANT.findall((sources.FOLDER / "abi.h").read_text()))
    named = {
        node.value
        for path in (ROOT / "src").rglob("*.py")
        if CONSTANT.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if CONSTANT.fullmatch(node.value)
    }
    assert named - header == set(variables.VARIABLES)
