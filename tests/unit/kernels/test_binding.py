"""The kernels' library is plain C to callers, and all of its header is read; no compiler."""

import re

import pytest

from abele.kernels import binding, sources

HEADER = re.sub(r"//[^\n]*", "", (sources.FOLDER / "abi.h").read_text())


def test_every_declaration_of_the_header_is_read():
    assert len(binding.STRUCTURES) == HEADER.count("typedef struct")
    assert len(binding.CONSTANTS) == HEADER.count(" = ")
    assert len(binding.CALLBACKS) == HEADER.count("typedef void")
    assert len(binding.SIGNATURES) == HEADER.count("ABELE_API int")


def test_the_header_is_plain_c():
    assert re.findall(r"#include (.*)", HEADER) == ["<stdint.h>"]
    assert all(name.startswith("abele_") for name in binding.SIGNATURES)
    assert all(name.startswith("Abele") for name in binding.STRUCTURES)


@pytest.mark.parametrize("path", sorted(sources.FOLDER.glob("*.cpp")), ids=lambda path: path.name)
def test_no_kernel_knows_torch(path):
    assert "torch" not in re.sub(r"//[^\n]*", "", path.read_text())


def test_every_source_is_compiled():
    assert {path.name for path in sources.FOLDER.glob("*.cpp")} == {*sources.KERNELS}
