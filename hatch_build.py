"""Puts compiled kernels into wheels, so that programs need not wait for them on a new machine.

Wheels also get the pages of ``docs``, which ``abele docs`` prints.

A wheel made on Linux with a C++ compiler brings the kernels for this machine's level of processors,
which takes half a minute of processor time. ``ABELE_WHEEL_KERNELS`` chooses otherwise: ``none``, or
levels of one architecture, such as ``x86-64-v3,x86-64-v4``, for a wheel that goes elsewhere; with
``CXX=aarch64-linux-gnu-g++`` also ``armv8.2-a``. Where a wheel brings none, or those of another
level, kernels are compiled when they are first needed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CHOICE = "ABELE_WHEEL_KERNELS"
# What abele.kernels.packaged calls them, which needs torch to be imported.
LIST, LIBRARY = "kernels.json", "kernels.so"


class CustomBuildHook(BuildHookInterface):
    """What hatchling calls before and after it makes a wheel."""

    folder: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels, and have them taken into the wheel.

        Args:
            version: "standard", or "editable": then the kernels are compiled when needed.
            build_data: of hatchling; told of the files and what the wheel runs on.

        Raises:
            ValueError: ``ABELE_WHEEL_KERNELS`` names no level.
            RuntimeError: levels are asked for and cannot be compiled.
        """
        if version != "standard":
            return
        pages = Path(self.root, "docs")  # for ``abele docs``
        for page in pages.rglob("*.md"):
            build_data["force_include"][str(page)] = f"abele/_docs/{page.relative_to(pages)}"
        root, asked = Path(self.root), os.environ.get(CHOICE)
        sources = module(root, "kernels/sources.py")
        here = sources.level(platform.machine(), module(root, "processor.py").listed())
        levels, compiler = wanted(sources, here, asked), sources.compiler()
        if levels and platform.system() != "Linux":  # the wheel would say that it is for Linux
            raise RuntimeError(f"{CHOICE}={asked}: kernels are compiled ahead on Linux alone.")
        if not levels or (compiler is None and asked is None):
            self.app.display_info("This wheel brings no compiled kernels.")
            return
        self.folder = tempfile.mkdtemp(prefix="abele-kernels-")
        try:
            for level in levels:
                self.app.display_info(f"Compiling abele's kernels for {level} ...")
                make(sources, compiler or "g++", level, Path(self.folder, level))
        except (OSError, RuntimeError) as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            if asked is not None:
                raise RuntimeError(f"{CHOICE}={asked}: {error}") from error
            self.app.display_warning(f"This wheel brings no compiled kernels: {error}")
            return
        build_data["force_include"][self.folder] = "abele/kernels/compiled"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{sources.architecture(levels[0])}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel has now."""
        del version, build_data, artifact_path
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def module(root: Path, path: str) -> Any:
    """Return a module of abele's that needs only Python, without the package, which needs torch.

    Args:
        root: of the project.
        path: in the package.
    """
    spec = importlib.util.spec_from_file_location(Path(path).stem, root / "src/abele" / path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def wanted(sources: Any, here: str | None, asked: str | None) -> list[str]:
    """Return the levels to compile for.

    Args:
        sources: the module ``abele.kernels.sources``.
        here: this machine's, if it has one.
        asked: by the user; None: for ``here``.

    Raises:
        ValueError: there is no such level, or they are of several architectures.
    """
    if asked is None:
        return [] if here is None else [here]
    levels = [] if asked == "none" else [each.strip() for each in asked.split(",")]
    if not set(levels) <= set(sources.LEVELS):
        raise ValueError(
            f"{CHOICE} is {asked!r}, but has to be of {', '.join(('none', *sources.LEVELS))}."
        )
    if len({sources.architecture(each) for each in levels}) > 1:
        raise ValueError(f"{CHOICE} is {asked!r}: one wheel is for one architecture.")
    return levels


def make(sources: Any, compiler: str, level: str, folder: Path) -> None:
    """Compile the kernels for a level.

    Args:
        sources: the module ``abele.kernels.sources``.
        compiler: path of the C++ compiler.
        level: of ``sources.LEVELS``.
        folder: gets an object of each source, the library, and the list of them.

    Raises:
        OSError: a file cannot be written.
        RuntimeError: the compiler fails; with what it said.
    """
    folder.mkdir(parents=True)
    flags = sources.flags(level)
    objects = {source: str(folder / f"{source}.o") for source in sources.KERNELS}

    def compile_one(source: str) -> None:
        _run([*sources.compiling(compiler, source, flags), "-o", objects[source]])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, objects))
    _run(sources.linking(compiler, list(objects.values()), str(folder / LIBRARY)))
    made = sorted(folder.iterdir())
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}
    text = json.dumps({"sources": sources.fingerprint(), "files": files}, indent=1)
    (folder / LIST).write_text(text + "\n", encoding="utf-8")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:1])} failed.\n{done.stderr}")
