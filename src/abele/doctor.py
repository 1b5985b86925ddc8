"""Command ``abele doctor``: what this installation has, and what it lacks."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from abele import processor, systems, variables
from abele.compilation.build import choose_target
from abele.errors import AbeleError
from abele.kernels import build, packaged, sources
from abele.targets import NAMES, get_target
from abele.targets.cpu.compiler import compiler, identity, why_unusable
from abele.version import __version__

_FREE_BYTES = 256 << 20  # what a compile may need among temporary files
_WIDTH = 100
_EXTRA = re.compile(r"""([\w.-]+).*;\s*extra\s*==\s*["']([\w-]+)["']""")


class Finding(NamedTuple):
    """A fact about this installation.

    Attributes:
        section: group in which it is shown.
        name: what was looked at.
        value: what was found.
        advice: what to do about it; None: nothing.
    """

    section: str
    name: str
    value: str
    advice: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add description and arguments of ``abele doctor`` to its parser."""
    parser.description = (
        "Shows versions, processor, compiler, kernels, targets, folders, optional packages and "
        "variables of this installation, with advice where something is missing. Compiles and "
        "changes nothing. Status: 0, or 1 if there is advice."
    )
    parser.add_argument("--json", action="store_true", help="as JSON, to be read by programs")


def command(parsed: argparse.Namespace) -> int:
    """Run ``abele doctor``: print what was found, and return 1 if there is advice, else 0."""
    found = findings()
    print(_as_json(found) if parsed.json else _as_text(found))
    return int(any(each.advice for each in found))


def findings() -> list[Finding]:
    """Look at this installation; warnings on the way become advice."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        looks = (
            _versions,
            _machine,
            _compiling,
            _targets,
            _folders,
            _packages,
            _vision,
            _variables,
        )
        found = [each for look in looks for each in look()]
    said = dict.fromkeys(str(each.message) for each in caught)
    return [*found, *(Finding("warnings", "warning", each, each) for each in said)]


def _versions() -> Iterator[Finding]:
    yield Finding("versions", "abele", f"{__version__} in {Path(__file__).parent}")
    yield Finding("versions", "torch", f"{torch.__version__} in {Path(torch.__file__).parent}")
    yield Finding("versions", "Python", platform.python_version())
    system = f"{platform.system()} {platform.release()}"
    yield Finding("versions", "system", " ".join((system, *platform.libc_ver())).strip())


def _machine() -> Iterator[Finding]:
    yield Finding("machine", "processor", f"{processor.name()}, {platform.machine()}")
    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("machine", "instructions", capability, get_target("cpu").why_slow())
    useful, quota, advice = processor.cores(), processor.quota(), None
    threads = f"{useful} usable by this process; torch uses {torch.get_num_threads()}"
    if quota is not None:
        threads += f"; the container has the time of {quota:g}"
        useful = min(useful, math.ceil(quota))
    if torch.get_num_threads() > useful:
        advice = f"Set OMP_NUM_THREADS={useful}: more threads wait for each other."
    yield Finding("machine", "cores", threads, advice)
    memory = systems.memory()
    yield Finding("machine", "memory", _size(memory) if memory else "unknown")


def _compiling() -> Iterator[Finding]:
    path = compiler()
    advice = why_unusable(path)
    yield Finding("compiling", "compiler", path or "none", advice)
    if path is not None:
        yield Finding("compiling", "its version", identity().partition(" ")[2])
        threads = "OpenMP" if sources.has_openmp(path) else "abele's own"
        yield Finding("compiling", "threads", threads)
    left = get_target("cpu").setup_seconds_left()
    brought = packaged.folder()
    if brought is not None:
        made = f"of the installed package, for {brought.name}"
    elif left:
        made = f"{left:.0f} s of compiling left, beside first steps or by `abele prepare`"
    else:
        made = "compiled for this machine"
    yield Finding("compiling", "kernels", made)


def _targets() -> Iterator[Finding]:
    for name in NAMES:
        target = get_target(name)
        unavailable = target.unavailable()
        cannot = unavailable or target.cannot_compile()
        yield Finding("targets", name, unavailable or cannot or "usable")
    try:
        chosen, forced = choose_target()
    except AbeleError as error:
        yield Finding("targets", "default", "none", str(error))
        return
    why = f"{chosen.name}, by ABELE_TARGET" if forced else chosen.name
    yield Finding("targets", "default", why, chosen.cannot_compile())


def _folders() -> Iterator[Finding]:
    kept = build.cache_folder()
    try:
        sizes = [each.stat().st_size for each in kept.rglob("*") if each.is_file()]
        yield Finding("folders", "cache", f"{kept}: {len(sizes)} files, {_size(sum(sizes))}")
    except OSError as error:
        yield Finding("folders", "cache", f"{kept}: {error.strerror}", str(error))
    try:
        folder = systems.temporary_folder()
    except OSError as error:
        yield Finding("folders", "temporary files", "none", f"{error}: set TMPDIR to a folder.")
        return
    free = shutil.disk_usage(folder).free
    advice = None
    if free < _FREE_BYTES:
        advice = f"Compilers may need {_size(_FREE_BYTES)} there: set TMPDIR to another folder."
    yield Finding("folders", "temporary files", f"{folder}: {_size(free)} free", advice)


def _packages() -> Iterator[Finding]:
    """Find the optional packages that are installed or missing, by extra."""
    try:
        required = importlib.metadata.requires("abele") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("packages", "abele", "runs from its sources and is not installed")
        return
    extras: dict[str, list[str]] = {}
    for found in filter(None, map(_EXTRA.match, required)):
        extras.setdefault(found[2], []).append(found[1])
    extras.pop("all", None)
    for extra, names in extras.items():
        lacking = [name for name in names if _version(name) is None]
        installed = (f"{name} {_version(name)}" for name in names if name not in lacking)
        listed = ", ".join((*installed, *(f"{name} missing" for name in lacking)))
        yield Finding("packages", f"abele[{extra}]", listed)


def _vision() -> Iterator[Finding]:
    """Find a torchvision that does not import beside a torch for processors alone."""
    vision, (release, _, build) = _version("torchvision"), torch.__version__.partition("+")
    if vision is not None and build == "cpu" and not vision.endswith("+cpu"):
        advice = (
            f"This build of torchvision needs CUDA and does not import beside torch {release}+cpu: "
            f"python -m pip install --force-reinstall torch=={release} torchvision --index-url "
            "https://download.pytorch.org/whl/cpu"
        )
        yield Finding("packages", "torchvision", vision, advice)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _variables() -> Iterator[Finding]:
    for name, value in sorted(os.environ.items()):
        if name in variables.VARIABLES:
            shown = "(set)" if "SECRET" in name else value
            yield Finding("variables", name, shown)
    for name, meant in sorted(variables.unknown(os.environ).items()):
        advice = f"Did you mean {meant}?" if meant else None
        yield Finding("variables", name, "no variable of abele: it has no effect", advice)


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _as_json(found: Sequence[Finding]) -> str:
    sections: dict[str, dict[str, str]] = {}
    for each in found:
        sections.setdefault(each.section, {})[each.name] = each.value
    advice = [each._asdict() for each in found if each.advice]
    return json.dumps({**sections, "advice": advice}, indent=2)


def _as_text(found: Sequence[Finding]) -> str:
    lines: list[str] = []
    width = max(len(each.name) for each in found) + 2
    section = ""
    for each in found:
        if each.section != section:
            section = each.section
            lines += ["", section] if lines else [section]
        first, *rest = textwrap.wrap(each.value, _WIDTH - width) or [""]
        lines += [f"  {each.name:{width}}{first}", *(f"  {'':{width}}{more}" for more in rest)]
    advice = {each.advice: f"{each.name}: {each.advice}" for each in found if each.advice}
    lines += ["", "advice" if advice else "Nothing needs attention."]
    for each in advice.values():
        lines.append(textwrap.fill(each, _WIDTH, initial_indent="  - ", subsequent_indent="    "))
    return "\n".join(lines)
