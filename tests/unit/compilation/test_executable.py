"""Executable files: what is in one, when it is refused, and that damage is always noticed."""

import dataclasses
import os
import re
import sys
import zipfile

import pytest
import torch

from abele import build
from abele.compilation import executable_file, keys
from abele.errors import CorruptExecutable, ForeignExecutable
from abele.step.config import StepConfig
from helpers.fakes import Keeping, KeptCode
from helpers.models import MODELS
from helpers.runs import captured

AFFINE = MODELS["affine"]
CONFIG = StepConfig(training=False)


@pytest.fixture
def programs():
    return captured(AFFINE.fresh(), AFFINE.batch()).programs


@pytest.fixture
def made(programs):
    return build(programs, CONFIG, target=Keeping())[0]


@pytest.fixture
def file(made, tmp_path):
    path = tmp_path / "an executable.abele"
    executable_file.save(made, path)
    return path


def reload(path, made):
    return executable_file.load(path, made.programs, made.key_parts, made.target)


def result(made):
    module, batch = AFFINE.fresh(), AFFINE.batch()
    return made.compiled["forward"].run([module.scale.detach(), module.shift, *batch])


def test_a_round_trip_keeps_everything(made, file):
    loaded = reload(file, made)
    assert (loaded.key, loaded.key_parts) == (made.key, made.key_parts)
    torch.testing.assert_close(result(loaded), result(made), rtol=0, atol=0)
    assert made.target.compilations == 1


def test_saving_replaces_what_is_there_and_makes_folders(made, tmp_path):
    path = tmp_path / "new" / "folder" / "x.abele"
    for _ in range(2):
        executable_file.save(made, path)
        assert reload(path, made).key == made.key
    assert os.listdir(path.parent) == ["x.abele"]


@pytest.mark.parametrize("part", [0, 0.5])
def test_a_truncated_file_is_corrupt(file, made, part):
    data = file.read_bytes()
    file.write_bytes(data[: int(part * len(data))])
    with pytest.raises(CorruptExecutable, match=r"(?s)an executable\.abele.*Delete it; it will"):
        reload(file, made)


def rewrite(path, **changes):
    """The same zip with some members replaced; sound as a zip."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | changes
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            if data is not None:
                archive.writestr(name, data)


def with_content(content):
    """The manifest of a container without members that says this."""
    head = f'"format": 1, "kind": "abele executable", "byte_order": "{sys.byteorder}"'
    members = '"members": {"code/forward": {}}'
    return f'{{{head}, {members}, "content": {content}}}'


@pytest.mark.parametrize(
    "manifest",
    ["", "{", "[]", "{}", "null", with_content("[]"), with_content('{"key_parts": ""}')],
    ids=["empty", "no JSON", "a list", "no entries", "null", "a list inside", "other types"],
)
def test_a_foreign_manifest_is_corrupt(file, made, manifest):
    rewrite(file, **{"manifest.json": manifest})
    with pytest.raises(CorruptExecutable, match="is not a readable executable"):
        reload(file, made)


def test_code_that_the_target_cannot_load_is_corrupt(file, made, monkeypatch):
    def fail(program, payload):
        raise RuntimeError("undefined symbol: f")

    monkeypatch.setattr(made.target.lowerings[0], "load", fail)
    with pytest.raises(CorruptExecutable, match=r"executable \(RuntimeError: undefined symbol: f"):
        reload(file, made)


@pytest.mark.parametrize(
    ("here", "named"),
    [
        ({"torch": "3.1"}, rf"target\.torch: {re.escape(torch.__version__)} there, 3\.1 here"),
        ({"isa": "avx512"}, r"target\.isa: avx2 there, avx512 here"),
        ({"isa": "x" * 99}, r"target\.isa: avx2 there, x{37}\.\.\. here"),
        ({"isa": "vsx", "torch": "3"}, r"target\.isa: .*; target\.torch: "),
    ],
    ids=["another torch", "another processor", "a long value is cut", "both are named"],
)
def test_a_file_from_elsewhere_is_refused_by_name(programs, tmp_path, here, named):
    there = build(programs, CONFIG, target=Keeping(isa="avx2"))[0]
    executable_file.save(there, tmp_path / "x.abele")
    mine = build(programs, CONFIG, target=Keeping(**{"isa": "avx2", **here}))[0]
    with pytest.raises(ForeignExecutable, match=f"was made for something else: {named}"):
        reload(tmp_path / "x.abele", mine)


def test_another_layout_is_refused_in_one_sentence(programs, made, tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "FORMAT", 1)
    old = build(programs, CONFIG, target=Keeping())[0]
    executable_file.save(old, tmp_path / "x.abele")
    monkeypatch.undo()
    refused = r"else: executables of layout 1 are not read any more, only those of layout 5\. Comp"
    with pytest.raises(ForeignExecutable, match=refused):
        reload(tmp_path / "x.abele", made)


class Emitted(KeptCode):
    """Takes programs while it is told to."""

    name, wanted = "emitted", True

    def why(self, program):
        return "it was told to" if self.wanted else None


def test_code_is_loaded_by_the_lowering_that_made_it(programs, tmp_path):
    target = Keeping()
    emitted = Emitted(padding=3)  # code of the other one would be refused
    target.lowerings = (emitted, *target.lowerings)
    made = build(programs, CONFIG, target=target)[0]
    executable_file.save(made, tmp_path / "x.abele")
    parts = executable_file.key_parts_in(tmp_path / "x.abele")
    assert parts["lowerings"] == {"forward": "emitted"}
    emitted.wanted = False
    torch.testing.assert_close(result(reload(tmp_path / "x.abele", made)), result(made))
    other = build(programs, CONFIG, target=target)[0]
    assert other.lowering("forward").name == "kept code"
    loaded = executable_file.load(tmp_path / "x.abele", other.programs, other.key_parts, target)
    assert loaded.lowering("forward") is emitted


def test_a_file_that_does_not_say_how_programs_were_lowered_is_damaged(made, tmp_path):
    parts = {name: each for name, each in made.key_parts.items() if name != "lowerings"}
    executable_file.save(dataclasses.replace(made, key_parts=parts), tmp_path / "x.abele")
    with pytest.raises(CorruptExecutable, match="how program 'forward' is lowered is not said"):
        executable_file.load(tmp_path / "x.abele", made.programs, parts, made.target)


def test_code_of_a_lowering_that_the_target_lacks_is_refused(programs, tmp_path):
    target = Keeping()
    target.lowerings = (Emitted(), *target.lowerings)
    made = build(programs, CONFIG, target=target)[0]
    executable_file.save(made, tmp_path / "x.abele")
    refused = r"by 'emitted', which target 'keeping' does not have \(it has kept code\)\. Compile"
    with pytest.raises(ForeignExecutable, match=refused):
        executable_file.load(tmp_path / "x.abele", made.programs, made.key_parts, Keeping())
