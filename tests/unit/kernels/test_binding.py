"""The Python side of the kernels' library says what ``abi.h`` says; no compiler."""

from __future__ import annotations

import ctypes
import re

import pytest

from abele.kernels import binding, sources

HEADER = re.sub(r"//[^\n]*", "", (sources.FOLDER / "abi.h").read_text())
NUMBERS = {
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
    "AbeleRows": binding.Rows,
    "AbeleDim": binding.Dim,
}


def declared(text):
    """The type of a field or an argument in ctypes: pointers but those to structures are plain."""
    words = text.replace("const ", "").rpartition(" ")
    kind = words[0].strip()
    if "*" not in text:
        return NUMBERS[kind]
    structure = binding.STRUCTURES.get(kind.replace("*", "").strip())
    return ctypes.POINTER(structure) if structure else ctypes.c_void_p


def structures():
    """Names and types of the fields of each structure."""
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", HEADER, re.DOTALL):
        fields = []
        for line in filter(None, map(str.strip, body.split(";"))):
            kind, _, names = line.replace("* ", " *").partition(" ")
            first, *others = line.split(",")
            kind, _, name_of_first = first.rpartition(" ")
            names = [name_of_first, *(each.strip() for each in others)]
            fields += [(each, declared(f"{kind} {each}")) for each in names]
        yield name, fields


def functions():
    """The types of the arguments of each function."""
    for result, name, arguments in re.findall(
        r"ABELE_API (\w+) (\w+)\(([^)]*)\);", HEADER, re.DOTALL
    ):
        assert result == "int"
        yield name, tuple(declared(" ".join(each.split())) for each in arguments.split(","))


def test_structures_have_the_fields_of_the_header():
    results = {name: list(kind._fields_) for name, kind in binding.STRUCTURES.items()}
    assert results == dict(structures())


def test_functions_take_what_the_header_declares():
    assert dict(functions()) == binding.SIGNATURES


def test_the_search_itself_sees_every_declaration():
    assert len(dict(structures())) == HEADER.count("typedef struct")
    assert len(dict(functions())) == HEADER.count("ABELE_API int") == len(binding.SIGNATURES)


def test_statuses_are_those_of_the_header():
    assert "enum { ABELE_OK = 0, ABELE_NO_MEMORY = 1, ABELE_NO_CODE = 2 };" in HEADER
    assert (binding.OK, binding.NO_MEMORY) == (0, 1)


def test_the_header_is_plain_c():
    assert re.findall(r"#include (.*)", HEADER) == ["<stdint.h>"]
    assert all(name.startswith("abele_") for name, _ in functions())
    assert all(name.startswith("Abele") for name, _ in structures())


@pytest.mark.parametrize("path", sorted(sources.FOLDER.glob("*.cpp")), ids=lambda path: path.name)
def test_no_kernel_knows_torch(path):
    assert "torch" not in re.sub(r"//[^\n]*", "", path.read_text())


def test_every_source_is_compiled():
    assert {path.name for path in sources.FOLDER.glob("*.cpp")} == {*sources.KERNELS}
