"""The command line: teaches, changes nothing around it, and answers mistakes in a sentence."""

import os
import re
import signal
import subprocess
import sys

import pytest

from cosmictagger import launch
from cosmictagger.cli import main
from cosmictagger.config.composing import GROUPS, PRESETS
from cosmictagger.config.keys import DATA, MODES, LearningRates, Optimizer, Run, Torch
from cosmictagger.errors import ConfigError
from helpers.cosmic_small import record
from helpers.warm_python import python


def test_help_teaches(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("run.id=first", "mode=inference", "generate --events", *MODES, *DATA, *PRESETS):
        assert word in text
    for name in GROUPS["network"]:
        assert name in text
    for kind in (Run, Torch, Optimizer, LearningRates, *MODES.values(), *DATA.values()):
        sections = {"optimizer", "lr_schedule"}
        for key in set(kind.__dataclass_fields__) - {"name", "synthetic", *sections}:
            assert re.search(rf"^    {key}=", text, re.MULTILINE), key
    assert all(len(line) <= 100 for line in text.splitlines())


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"cosmictagger \d+\.\d+\.\d+(rc\d+)?\n", capsys.readouterr().out)


def test_a_run_without_a_name(capsys):
    assert main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("cosmictagger: run.id is missing or empty. Give it a name")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["mode=infer"], r"mode=infer was asked for; choices are train, inf.* mean inference\?"),
        (
            ["run.compute_mode=TPU"],
            r"=TPU was .* no such choice. Known: CPU \(0\), GPU \(1\), IPU \(5\), RDU \(6\)\.$",
        ),
        (["run.iteration=3"], r"no key run.iteration. Did you mean run.iterations or"),
        (["minibatch_size=3"], r"no key minibatch_size. Did you mean run.minibatch_size\?"),
        (["run.iterations=many"], "run.iterations=many was .* takes a value of int"),
        (["network.depth=[1,2]"], r"network.depth=\[1,2\] was .* takes a value of int"),
        (["--config-name", "a22"], r"presets are config, a21.* Did you mean a21"),
        (["run.id=a/b"], "run.id=a/b was asked for, but a folder is named after it, and it has a"),
        (["--multirun"], "--multirun is neither KEY=VALUE"),
        (["train"], "train is neither KEY=VALUE nor a command; commands are generate and"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, overrides, match):
    monkeypatch.chdir(tmp_path)
    assert main(["run.id=x", *overrides]) == 2
    said = capsys.readouterr().err
    assert re.search(f"^cosmictagger: .*{match}", said)
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_folder_stays_and_nothing_is_written_elsewhere(run, tmp_path):
    status, out = run("mode=iotest", "run.iterations=1")
    assert status == 0
    assert os.getcwd() == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_presets_by_name(run, tmp_path):
    status, out = run(
        "--config-name", "a21", "mode=inference", "mode.weights_location=random",
        "run.iterations=1", "network=polaris", "network.blocks_per_layer=0",
    )  # fmt: skip
    assert status == 0
    result = record(out)["config"]
    assert result["network"]["name"] == "polaris"
    assert result["data"]["name"] == "real"


def test_environment_variables(run, monkeypatch):
    monkeypatch.setenv("COSMIC_TEST", "before")
    assert run("mode=iotest", "run.iterations=1",
               "+framework.environment_variables.COSMIC_TEST='3'")[0] == 0  # fmt: skip
    assert os.environ["COSMIC_TEST"] == "3"


def test_compile_is_for_rdu_mode(capsys):
    assert main(["compile", "run.id=x"]) == 2
    assert "Add run.compute_mode=RDU" in capsys.readouterr().err


def test_compile_makes_the_file_that_training_loads(run, plane_net, capsys):
    rdu = ("run.compute_mode=RDU", "run.iterations=1", "run.aux_iterations=0")
    status, out = run("compile", *rdu)
    assert status == 0
    made = out / "pef" / "train" / "train.pef"
    before = made.stat().st_mtime_ns
    assert run(*rdu)[0] == 0
    assert made.stat().st_mtime_ns == before
    proof = record(out)["proof"]
    assert (proof["mode"], proof["backend"], proof["training_steps"]) == ("RDU", "sambaflow", 1)


class TestGenerate:
    def test_makes_a_file_that_trains(self, run, tmp_path, capsys):
        path = tmp_path / "made" / "events.h5"
        path.parent.mkdir()
        arguments = ["generate", "--events", "2", "--output", str(path), "--rows", "64"]
        assert main([*arguments, "--columns", "128"]) == 0
        assert "2 events of 64 x 128, seed 1" in capsys.readouterr().out
        status, out = run(
            f"data.data_directory={path.parent}", "data.file=events.h5", "data.aux_file=",
            "run.iterations=1",
        )  # fmt: skip
        assert status == 0
        assert record(out)["steps"] == 1
        assert main([*arguments, "--columns", "128"]) == 2
        assert "exists already" in capsys.readouterr().err

    def test_needs_a_number_and_a_name(self, capsys):
        with pytest.raises(SystemExit):
            main(["generate"])
        assert "--events" in capsys.readouterr().err
        assert main(["generate", "--events", "0", "--output", "x.h5"]) == 2
        assert "0 events were asked for" in capsys.readouterr().err


def test_built_in_events_are_made_once(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COSMICTAGGER_CACHE", str(tmp_path / "kept"))
    small = ("data=generated", "data.events=2", "data.aux_events=1", "data.rows=64",
             "data.columns=128", "run.iterations=2", "run.aux_iterations=1")  # fmt: skip
    status, out = run(*small)
    assert status == 0
    files = sorted((tmp_path / "kept").iterdir())
    assert len(files) == 2
    log = (out / "process.log").read_text()
    assert f"Making 2 events, once, to keep in {files[0].parent}" in log
    assert f"Making 1 event, once, to keep in {files[0].parent}" in log
    times = [path.stat().st_mtime_ns for path in files]
    assert run(*small)[0] == 0
    assert [path.stat().st_mtime_ns for path in files] == times
    assert record(out)["steps"] == 4


def test_where_programs_are_kept(run, monkeypatch, capsys):
    def create(network, loss, settings):
        raise ConfigError(f"{settings.executables} is the folder.")

    monkeypatch.setattr(launch.backends, "create", create)
    monkeypatch.setenv("COSMICTAGGER_CACHE", "kept")
    for given, environment, wanted in (
        ("", "", "kept/executables"), ("", "elsewhere", "elsewhere"),
        ("here", "elsewhere", "here"), ("False", "elsewhere", None),
    ):  # fmt: skip
        monkeypatch.setenv("POPTORCH_CACHE_DIR", environment)
        run("run.iterations=1", f"run.executable_cache={given}")
        assert f"cosmictagger: {wanted} is the folder." in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [python(), "-m", "cosmictagger", "--help"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        problems = process.stderr.read()
    assert (process.returncode, problems) == (128 + signal.SIGPIPE, "")


SEEDED = """
import sys, types
from cosmictagger import instances, launch
for seed in 0, 5:
    fields = types.SimpleNamespace(seed=seed)
    with launch._seeded(types.SimpleNamespace(data=fields, framework=fields), instances.alone()):
        import torch
        fixed = torch.are_deterministic_algorithms_enabled()
    print(fixed, torch.are_deterministic_algorithms_enabled(), "torch._inductor" in sys.modules)
"""


def test_torchs_compiler_is_imported_only_where_kernels_are_to_be_fixed():
    command = [sys.executable, "-c", SEEDED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False False", "True False True"]
