"""Writes stand-ins for CUDA's libraries into a torch folder, so that a CUDA build imports without.

On the public package index torch for Linux asks for gigabytes of CUDA libraries at its import,
also on machines without a GPU. A stand-in defines what torch's own libraries want of one of them;
every function returns an error, so torch finds no GPU. Needs readelf and a C compiler ($CC or cc).

Usage: python scripts/torch_stubs.py FOLDER      site-packages/torch
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MISSING = re.compile(r"lib(cu|nccl|nv)[\w-]*\.so[.\d]*")  # names of libraries of CUDA's packages
OF_CUDA = re.compile(r"_*(cu|nv|nccl)", re.IGNORECASE)  # names of functions without a version
NO_DEVICE = 100  # cudaErrorNoDevice, an error in the other libraries, too
TEXTS = re.compile(r"Error(String|Name)|StatusString|GetLastError$|version_str", re.IGNORECASE)

# Functions by the version that their users ask for; the empty one for those without a version.
Versions = dict[str, set[str]]


def main(arguments: list[str]) -> int:
    """Write the stand-ins that a torch folder needs and print how many there are."""
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    folder = Path(arguments[0]) / "lib"
    libraries = [path for path in sorted(folder.glob("*.so*")) if path.is_file()]
    if not libraries:
        print(f"No libraries in {folder}: name the installed torch's folder.", file=sys.stderr)
        return 1
    wanted = wanted_of(libraries)
    for name, versions in wanted.items():
        write(folder / name, versions)
    print(f"{len(wanted)} stand-ins for libraries of CUDA in {folder}")
    return 0


def wanted_of(libraries: list[Path]) -> dict[str, Versions]:
    """Return what libraries want of those of CUDA that do not lie beside them, by library."""
    wanted: dict[str, Versions] = {}
    undefined: set[tuple[str, str]] = set()
    defined: set[str] = set()
    for library in libraries:
        dynamic = read(library, "--dynamic")
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic):
            if MISSING.fullmatch(name) and not (library.parent / name).exists():
                wanted.setdefault(name, {})
        here, elsewhere = symbols_of(library)
        defined |= here
        undefined |= elsewhere
    owners = {version: name for path in libraries for name, version in needs_of(path)}
    for version, name in owners.items():
        if name in wanted:
            wanted[name][version] = set()
    first = next((name for name in wanted if name.startswith("libcudart")), None)
    for symbol, version in undefined:
        owner = owners.get(version) if version else first
        if owner in wanted and (version or (symbol not in defined and OF_CUDA.match(symbol))):
            wanted[owner].setdefault(version, set()).add(symbol)
    return wanted


def read(library: Path, what: str) -> str:
    """Return what readelf says of a library."""
    command = ["readelf", "--wide", what, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbols_of(library: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the names that a library defines, and those it wants with their versions."""
    defined: set[str] = set()
    undefined: set[tuple[str, str]] = set()
    for line in read(library, "--dyn-syms").splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdecimal():
            continue
        name, _, version = fields[7].partition("@")
        if fields[6] == "UND":
            undefined.add((name, version.strip("@")))
        else:
            defined.add(name)
    return defined, undefined


def needs_of(library: Path) -> list[tuple[str, str]]:
    """Return the versions that a library wants, as pairs of another library and a version."""
    found: list[tuple[str, str]] = []
    file = ""
    for line in read(library, "--version-info").splitlines():
        if " File: " in line:
            file = line.split(" File: ")[1].split()[0]
        elif " Name: " in line and " Version: " in line and " Flags: " in line and file:
            found.append((file, line.split(" Name: ")[1].split()[0]))
    return found


def write(target: Path, versions: Versions) -> None:
    """Compile one stand-in."""
    taken: set[str] = set()
    lines, script = ["int abele_stand_in;"], []
    for version, symbols in sorted(versions.items(), reverse=True):
        new = sorted(symbols - taken)
        taken |= symbols
        for name in new:
            value = '(long)"no CUDA"' if TEXTS.search(name) else NO_DEVICE
            lines.append(f"long {name}(void) {{ return {value}; }}")
        if version:
            listed = "".join(f" {name};" for name in new)
            script.append(f"{version} {{ global:{listed or ' abele_none;'} }};")
    with tempfile.TemporaryDirectory() as folder:
        source, versioned = Path(folder, "stand_in.c"), Path(folder, "versions")
        source.write_text("\n".join(lines) + "\n")
        versioned.write_text("\n".join(script) + "\n")
        compiler = os.environ.get("CC", "cc").split()
        flags = ["-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{target.name}"]
        if script:
            flags.append(f"-Wl,--version-script={versioned}")
        subprocess.run([*compiler, *flags, "-o", str(target), str(source)], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
