"""A release is refused where version, tag and pages disagree; the form of the changelog."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("release", ROOT / "scripts/release_files.py")
release = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(release)
VERSION = release.version_of(ROOT)


@pytest.fixture
def ready(tmp_path):
    """A repository of the files that a release compares, committed, with its tag and an address."""
    for name in ("CHANGELOG.md", "CITATION.cff", "pyproject.toml", "src/abele/version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    rewrite(tmp_path / "pyproject.toml", "example.invalid", "example.org")
    rewrite(tmp_path / "CHANGELOG.md", r"(?s)(## Unreleased\n).*?(?=^## \d)", r"\1\n", re.M)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    git(tmp_path, "tag", f"v{VERSION}")
    return tmp_path


def rewrite(path, pattern, text, flags=0):
    path.write_text(re.sub(pattern, text, path.read_text(encoding="utf-8"), flags=flags))


def git(folder, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *words], cwd=folder, check=True)


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a")


def test_a_tagged_commit_is_ready(ready):
    assert release.unready(ready) == []


@pytest.mark.parametrize(
    ("file", "pattern", "text", "said"),
    [
        ("src/abele/version.py", '"1.*"', '"9.9"', "says 9.9, but this commit has no tag v9.9"),
        ("CHANGELOG.md", "## 1.0.0", "## 0.9", f"has no section {VERSION}"),
        ("CHANGELOG.md", "## Unreleased\n", "## Unreleased\n- a\n", "has lines under Unreleased"),
        ("CITATION.cff", "version: 1", "version: 0", "is of another version than"),
        ("pyproject.toml", "example.org", "example.invalid", "is a placeholder: set it"),
    ],
)
def test_what_disagrees_is_named(ready, file, pattern, text, said):
    rewrite(ready / file, pattern, text)
    assert any("files differ from the commit" in each for each in release.unready(ready))
    commit(ready)
    git(ready, "tag", "-f", f"v{VERSION}")
    assert said in release.unready(ready)[0]


def test_a_later_commit_has_no_tag(ready):
    commit(ready)
    (said,) = release.unready(ready)
    assert said == f"src/abele/version.py says {VERSION}, but this commit has no tag v{VERSION}."


def test_the_changelog_has_dated_versions_and_known_groups():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *versions = re.findall("^## (.*)$", text, re.M)
    assert first == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)? - \d{4}-\d\d-\d\d", each) for each in versions)
    assert set(re.findall("^### (.*)$", text, re.M)) <= {"Added", "Changed", "Removed", "Fixed"}


def test_the_sdist_has_no_benchmarks_and_wheels_no_tests(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    targets = project["tool"]["hatch"]["build"]["targets"]
    assert "/benchmarks" in targets["sdist"]["exclude"]
    for name, foreign in {"abele/a.py": False, "tests/a.py": True, "a/libgomp.so.1": True}.items():
        wheel = tmp_path / "a.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(name, "")
        if foreign:
            with pytest.raises(release.Refused, match=r"a\.whl has 1 files that it should not"):
                release.check_contents(wheel)
        else:
            release.check_contents(wheel)


def test_help_needs_nothing():
    command = [sys.executable, "-S", str(ROOT / "scripts/release_files.py"), "--help"]
    assert "upload nothing" in subprocess.run(command, capture_output=True, text=True).stdout
