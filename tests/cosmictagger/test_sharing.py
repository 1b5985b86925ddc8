"""A pass shared by instances, one after another in this process: the files of a single instance."""

import json
import re
from pathlib import Path

import pytest

from cosmictagger.config.composing import composed
from cosmictagger.errors import DataError, InstanceError
from cosmictagger.instances import Instances
from cosmictagger.launch import launched
from cosmictagger.modes import inference
from helpers.cosmic_small import given, record

pytestmark = pytest.mark.usefixtures("plane_net", "quick_pictures")


@pytest.fixture
def instance(events_folder, tmp_path, monkeypatch):
    """Runs one instance of several, which writes what it can without the others."""
    monkeypatch.chdir(tmp_path)

    def run(folder: str, index: int, count: int, *overrides: str) -> Path:
        output = tmp_path / folder
        changed = {override.split("=")[0] for override in overrides}
        kept = [a for a in given(events_folder) if a.split("=")[0] not in changed]
        config = composed(
            "config",
            [
                *(["mode=inference"] if "mode" not in changed else []),
                "mode.weights_location=random",
                f"output_dir={output}",
                *kept,
                *overrides,
            ],
        )
        with launched(config) as launch:
            launch.instances = Instances()
            launch.instances.index, launch.instances.count = index, count
            inference.infer(launch)
        return output

    return run


@pytest.fixture
def instances(instance):
    """Runs all instances, the first one last, because it joins the parts."""

    def run(folder: str, count: int, *overrides: str) -> Path:
        for index in range(1, count):
            with pytest.MonkeyPatch.context() as patch:
                not_first(patch)
                instance(folder, index, count, *overrides)
        return instance(folder, 0, count, *overrides)

    return run


def not_first(patch):
    """Let an instance take itself for another than the first, with the values of the first."""
    patch.setattr(Instances, "is_first", False)
    patch.setattr(Instances, "from_first", lambda self, topic, value=None: value)


def files(folder: Path) -> dict[str, bytes]:
    """What a pass leaves, without times and without what only a shared one says."""
    results = {}
    for file in folder.rglob("*"):
        name = str(file.relative_to(folder))
        if file.is_file() and not name.startswith(("process.log", "run.json", "profiles")):
            content = file.read_bytes()
            if name == "report.html":
                row = rb"<div><dt>instances</dt><dd><code>\d</code></dd></div>"
                content = re.sub(row, b"", content)
                content = content.replace(bytes(folder.parent), b"")
            results[name] = content
    return results


def compare(one: Path, many: Path) -> None:
    first, second = files(one), files(many)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    for key in ("metrics", "events", "weights_hash", "ended"):
        assert json.dumps(record(one)[key]) == json.dumps(record(many)[key])
    steps = [record(folder)["proof"]["evaluation_steps"] for folder in (one, many)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize(
    ("count", "overrides"),
    [
        pytest.param(2, ["mode.displays=2"], marks=pytest.mark.long),
        (3, ["run.minibatch_size=3", "mode.start_index=2"]),
        (5, ["run.iterations=3"]),  # fewer batches than instances
        pytest.param(2, ["data.label=", "mode.displays=1"], marks=pytest.mark.long),
    ],
)
def test_the_files_are_those_of_one_instance(instance, instances, count, overrides):
    one, many = instance("one", 0, 1, *overrides), instances("many", count, *overrides)
    compare(one, many)
    assert not (many / "parts").exists()
    assert "predictions.h5" in files(many)


def test_tensorboard_files_are_written_once(instance, instances):
    many = instances("many", 2, "run.saver=True")
    assert len(list((many / "ana").iterdir())) == 1


def test_a_failure_while_joining_loses_nothing(instance, instances, monkeypatch):
    many = instances("many", 2)
    before = files(many)

    def full(*_):
        raise DataError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("cosmictagger.results.writer.join_predictions", full)
        with pytest.raises(DataError, match="no space"):
            instances("many", 2)
    assert {name: content for name, content in files(many).items() if name in before} == before


def test_a_part_that_the_first_instance_does_not_see_is_named(instance):
    match = r"Instance 1 .* finds none in .*All instances need one"
    with pytest.raises(InstanceError, match=match):
        instance("many", 0, 2)


def test_a_pass_that_was_stopped_leaves_what_is_done(instance, instances, monkeypatch):
    original = inference.Stop

    class Stopped(original):
        def __enter__(self):
            entered = super().__enter__()
            self.signal = 15
            return entered

    with monkeypatch.context() as patch:
        not_first(patch)
        patch.setattr(inference, "Stop", Stopped)
        instance("many", 1, 2)
    many = instance("many", 0, 2)
    assert record(many)["ended"] == "stopped by signal 15"
    assert record(many)["events"] == 4  # those of the first instance
