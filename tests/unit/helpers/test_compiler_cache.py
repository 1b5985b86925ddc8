"""The C++ compiler of the tests is called once for each generated source."""

import subprocess

import pytest

from helpers import compiler_cache

COMPILER = """#!/bin/sh
echo "$@" >> {calls}
while [ "$1" != -o ]; do shift; done
echo compiled > "$2"
"""


@pytest.fixture
def calls(tmp_path):
    """The file with a line for each call of the real compiler."""
    return tmp_path / "calls"


@pytest.fixture
def compile_file(tmp_path, calls):
    """Compiles text in a folder of its own; returns the file that is made."""
    real = tmp_path / "g++"
    real.write_text(COMPILER.format(calls=calls))
    real.chmod(0o755)
    (tmp_path / "kept").mkdir()
    command = compiler_cache.install(tmp_path / "kept", str(real), "version 1")

    def run(folder, text, *options, suffix=".cpp"):
        (tmp_path / folder).mkdir(exist_ok=True)
        source = tmp_path / folder / f"source{suffix}"
        source.write_text(text)
        made = source.with_suffix(".made")
        made.unlink(missing_ok=True)
        subprocess.run([command, source, *options, "-o", made], check=True)
        assert made.read_text() == "compiled\n"
        return made

    return run


@pytest.mark.parametrize(("again", "count"), [("int x;\n", 1), ("int y;\n", 2)])
def test_the_same_source_is_compiled_once(compile_file, calls, again, count):
    compile_file("one", "int x;\n")
    compile_file("other", again)
    assert len(calls.read_text().splitlines()) == count


@pytest.mark.parametrize("options", [["-I{}"], ["-I", "{}"], ["-iquote", "{}"], []])
def test_a_changed_header_is_another_output(options, compile_file, calls, tmp_path):
    """Included by another one, which lies in a folder of the command or beside the source."""
    folder = tmp_path / ("headers" if options else "one")
    folder.mkdir()
    (folder / "outer.h").write_text("#include <vector>\n#include <inner.h>\n")
    for text in ("int x;", "int x;", "int y;"):
        (folder / "inner.h").write_text(text)
        compile_file("one", '#include "outer.h"\n', *(each.format(folder) for each in options))
    assert len(calls.read_text().splitlines()) == 2


def test_other_options_are_another_output(compile_file, calls):
    for level in ("-O1", "-O3", "-O1"):
        compile_file("one", "int x;\n", level)
    assert len(calls.read_text().splitlines()) == 2


def test_a_precompiled_header_is_one_file_under_all_its_names(compile_file, calls):
    names = [
        compile_file(folder, "#include <x>\n", "-x", "c++-header", suffix=".h")
        for folder in ("one", "other")
    ]
    assert names[0].samefile(names[1])
    assert len(calls.read_text().splitlines()) == 1


def test_what_is_only_asked_is_asked_of_the_compiler(compile_file, calls):
    for _ in range(2):
        compile_file("one", "int x;\n", "-E")
    assert len(calls.read_text().splitlines()) == 2
