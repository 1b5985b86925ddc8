"""Command line, driver, and the starters as a user runs them."""

import json
from pathlib import Path

import pytest
import torch

import samba_cnn
import samba_logreg
from abele import __main__ as command_line
from helpers.samba_models import Dense, named, rows
from sambaflow import logging as samba_logging
from sambaflow import samba
from sambaflow.errors import PefDamagedError, UsageError
from sambaflow.samba.utils.argparser import parse_app_args, parse_yaml_to_args
from sambaflow.samba.utils.common import common_app_driver

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("compile", "run", "test", "measure-performance", "measure-sections")
READ_BY_PROGRAMS = """
command pef mapping inference batch_size num_spatial_batches data_parallel reduce_on_rdu world_size
n_chips run_graph_only num_iterations json compiled_stats_json min_duration output_folder pef_name
acc_report_json visualize distlearn_config verbose_report resource_report_path num_sections
"""


@pytest.fixture(autouse=True)
def _unsaid():
    samba_logging._said.clear()


def arguments(command, *more):
    return [command, *([] if command == "compile" else ["--pef", "x.pef"]), *more]


@pytest.mark.parametrize("command", COMMANDS)
def test_programs_find_what_they_read(command):
    args = parse_app_args(arguments(command))
    assert args.command == command
    assert not [name for name in READ_BY_PROGRAMS.split() if not hasattr(args, name)]
    assert (args.batch_size, args.mapping, args.output_folder) == (1, "section", "out")


def test_options_of_the_program():
    def common(parser):
        parser.add_argument("-b", "--batch-size", type=int, default=32)  # ours is replaced
        parser.add_argument("-n", "--iterations", type=int, default=7)

    def run(parser):
        parser.add_argument("--data-dir")

    args = parse_app_args(
        arguments("run", "-b", "8", "--data-dir", "d"), common_parser_fn=common, run_parser_fn=run
    )
    assert (args.batch_size, args.iterations, args.data_dir) == (8, 7, "d")
    assert parse_app_args(["compile"], common_parser_fn=common, run_parser_fn=run).batch_size == 32


def test_the_vendors_options_are_said_once(capsys):
    # The compile line of the published script, section 14.4 of the reference.
    line = (
        "compile --enable-stoc-rounding --enable-conv-tiling --compiler-configs-file c.json "
        "--mac-human-decision m.json --batch-size 4 --data-parallel -ws 2 --num-tiles=4 "
        "--pef-name=cosmictagger --output-folder=pefs --enable-tiling=True --mac-v1 --o1"
    )
    for _ in range(2):
        args = parse_app_args(line.split())
    assert (args.world_size, args.pef_name, args.enable_tiling) == (2, "cosmictagger", True)
    said = capsys.readouterr().err
    for name in ("--num-tiles", "--mac-v1", "--enable-tiling", "--compiler-configs-file", "--o1"):
        assert said.count(f"{name} is accepted and has no effect") == 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ([], "required: COMMAND"),
        (["train"], "invalid choice: 'train'"),
        (["run"], "required: -p/--pef"),
        (["compile", "-b", "0"], "has to be at least 1, found 0"),
        (["compile", "--nmu-tiles", "4"], "unrecognized arguments: --nmu-tiles"),
        (["compile", "--enable-tiling=perhaps"], "takes True or False"),
    ],
)
def test_a_wrong_command_line(line, text, capsys):
    with pytest.raises(SystemExit):
        parse_app_args(line)
    assert text in capsys.readouterr().err


def test_yaml_overlays_options(tmp_path):
    pytest.importorskip("yaml")
    file = tmp_path / "options.yaml"
    file.write_text("num-epochs: 3\nlr: 0.5\n")
    args = parse_yaml_to_args(file, parse_app_args(["compile"]))
    assert (args.num_epochs, args.lr) == (3, 0.5)
    file.write_text("- 1\n")
    with pytest.raises(UsageError, match="has to be a mapping of options"):
        parse_yaml_to_args(file, args)
    file.write_text("a: [1\n")
    with pytest.raises(UsageError, match="not readable YAML"):
        parse_yaml_to_args(file, args)


# -- the driver, as the published port calls it ----------------------------------------------


def parts():
    torch.manual_seed(0)
    model = samba.from_torch_model_(Dense())
    return model, named(rows(0)), samba.optim.SGD(model.parameters(), lr=0.1)


def drive(*line):
    args = parse_app_args(list(line))
    model, inputs, optimizer = parts()
    return common_app_driver(
        args=args,
        model=model,
        inputs=inputs,
        name="model",
        optim=optimizer,
        squeeze_bs_dim=False,
        get_output_grads=False,
        app_dir=samba.utils.get_file_dir(__file__),
    )


def test_the_driver_does_every_command(tmp_path, capsys):
    pef = drive("compile", "--pef-name", "logreg")
    assert pef == "out/logreg/logreg.pef"
    said = capsys.readouterr().out
    for text in ("Compiling model; the log goes to out/logreg/logreg.samba.log", "step (",
                 "PEF file out/logreg/logreg.pef created", "Compilation succeeded."):  # fmt: skip
        assert text in said
    assert drive("run", "--pef", pef) is None

    drive("test", "--pef", pef)
    said = capsys.readouterr().out
    assert "output_0: largest difference 0," in said
    assert "gradient of layer.weight: largest difference 0," in said
    assert "Test passed" in said

    stats = ("--json", "speed.json", "--compiled-stats-json", "compiled.json")
    result = drive("measure-performance", "--pef", pef, "-n", "5", *stats)
    assert json.loads(Path("speed.json").read_text()) == result
    assert (result["target"], result["iterations"], result["batch_size"]) == ("reference", 5, 4)
    assert result["samples_per_s"] == 4 / result["latency_s"]["median"] > 0
    assert json.loads(Path("compiled.json").read_text())["nodes"]["step"] > 10
    assert "samples/s, 5 iterations of 4 samples" in capsys.readouterr().out

    sections = drive("measure-sections", "--pef", pef, "-n", "2")
    assert sections.keys() == {"fwd", "bckwd", "opt"}
    assert min(sections.values()) > 0

    with pytest.raises(PefDamagedError, match="There is no PEF file"):
        drive("test", "--pef", "missing.pef")


def test_the_driver_finds_a_difference(monkeypatch):
    pef = drive("compile", "--pef-name", "logreg")
    right = type(samba.session).run

    def wrong(self, *args, **kwargs):
        loss, scores = right(self, *args, **kwargs)
        scores += 0.1
        return loss, scores

    monkeypatch.setattr(type(samba.session), "run", wrong)
    with pytest.raises(AssertionError, match=r"output_1: differs by up to 0\.1, allowed"):
        drive("test", "--pef", pef)


# -- the starters ------------------------------------------------------------------------------


STARTERS = {"logreg": samba_logreg, "cnn": samba_cnn}


@pytest.mark.parametrize("name", STARTERS)
def test_a_starter_compiles_and_trains(name, capsys):
    assert len((ROOT / "examples" / f"samba_{name}.py").read_text().splitlines()) < 80
    main = STARTERS[name].main
    main(["compile", "-b", "16", "--pef-name", name])
    main(["run", "-b", "16", "--samples", "800", "--pef", f"out/{name}/{name}.pef"])
    accuracy = float(capsys.readouterr().out.rpartition("accuracy")[2].split()[0])
    assert accuracy > 40


def test_questions_of_memory_and_stages_are_refused_in_a_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = str(ROOT / "examples" / "samba_logreg.py")
    for command in (["fit"], ["stage", "--ipus", "2"]):
        assert command_line.main([*command, script, "--", "compile"]) == 1
        *_, line = capsys.readouterr().err.splitlines()
        assert "A SambaFlow program has sections instead" in line
