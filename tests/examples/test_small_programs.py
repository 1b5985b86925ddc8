"""The short example programs, one per feature, run as a user runs them."""

import re
import runpy
from pathlib import Path

import pytest

import device_iterations
import gradient_accumulation
import pipelining
import replicas
from helpers.warm_python import python, run_program

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
# Not half_precision: it imports scikit-learn, which sets environment variables for good.
WITH_HELP = (
    "device_iterations",
    "distributed",
    "efficient_data_loading",
    "gradient_accumulation",
    "observing_tensors",
    "pipelining",
    "replicas",
    "resume",
    "save_and_load",
)


@pytest.mark.parametrize("program", WITH_HELP)
def test_help_says_what_it_shows_and_runs_nothing(program, monkeypatch, capsys, tmp_path):
    if program == "observing_tensors":
        pytest.importorskip("matplotlib", reason="optional extra: pip install abele[demo]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [program, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(EXAMPLES / f"{program}.py"), run_name="__main__")
    assert left.value.code == 0
    usage, _, description = capsys.readouterr().out.partition("\n\n")
    assert usage.startswith("usage:")
    assert len(description.splitlines()[0]) > 20
    assert list(tmp_path.iterdir()) == []


def run(folder, *arguments):
    """Return the lines that a program prints, which is run in a folder."""
    source = str(REPOSITORY / "src")
    variables = {"PYTHONPATH": source, "ABELE_TARGET": "reference", "MPLBACKEND": "agg"}
    done = run_program(*arguments, cwd=folder, **variables)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.splitlines()


def test_efficient_data_loading(tmp_path):
    lines = run(tmp_path, EXAMPLES / "efficient_data_loading.py", "--rows", "64")
    assert lines[0].split() == ["loading", "rows/s"]
    assert len(lines) == 5
    assert all(float(line.split()[-1]) > 0 for line in lines[1:])


def test_distributed(tmp_path):
    (alone,) = run(tmp_path, EXAMPLES / "distributed.py")
    assert alone.startswith("instance 0 of 1: replicas 0 to 3, 64 of 64 rows, 0 exchange")
    options = ["-m", "popdist.run", "--num-instances", "2", "--num-replicas", "4"]
    first, second = sorted(run(tmp_path, *options, python(), EXAMPLES / "distributed.py"))
    assert "instance 0 of 2: replicas 0 to 1, 32 of 64 rows, 20 exchanges" in first
    assert "instance 1 of 2: replicas 2 to 3, 32 of 64 rows, 20 exchanges" in second
    weights = [line.partition("weights ")[2] for line in (first, second)]
    assert weights[0] == weights[1] != ""
    sums = [float(line.rpartition("(")[2].strip(")")) for line in (alone, first)]
    assert abs(sums[0] - sums[1]) < 1e-4


@pytest.mark.long
def test_resume(tmp_path):
    killed, compared = run(tmp_path, EXAMPLES / "resume.py")
    assert killed.startswith("killed; it had saved step-")
    assert compared == "equal weights: yes"
    assert list(tmp_path.iterdir()) == []


def test_the_new_process_goes_on_with_equal_outputs(tmp_path):
    head, *table = map(str.split, run(tmp_path, EXAMPLES / "save_and_load.py"))
    assert head[0] == "step"
    assert [line[0] for line in table] == ["5", "6", "7", "8", "9"]
    assert all(line[1] == line[2] and line[3] == "yes" for line in table)
    assert list(tmp_path.iterdir()) == []


def test_the_table_shows_smaller_gradients_and_the_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib", reason="optional extra: pip install abele[demo]")
    head, *lines = run(tmp_path, EXAMPLES / "observing_tensors.py")
    assert head.split() == ["step", "loss", "|gradient", "of", "fc1|", "|gradient", "of", "fc2|"]
    table = [[float(value) for value in line.split()] for line in lines]
    assert [row[0] for row in table] == [0, 10, 20, 30, 40, 50]
    assert table[-1][1] < table[0][1]
    assert all(0 < row[2] < 1 and 0 < row[3] < 1 for row in table)
    picture = (tmp_path / "out" / "observing_tensors.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


# -- in this process -----------------------------------------------------------------------------


@pytest.fixture
def lines_of(monkeypatch, capsys):
    """A function that returns the lines that a program prints."""
    monkeypatch.setenv("ABELE_TARGET", "reference")

    def lines(program):
        program.main()
        return capsys.readouterr().out.splitlines()

    return lines


def table(lines):
    """Return the cells of each row, without the heading."""
    return [[cell.strip() for cell in line.split("|")] for line in lines][1:]


def test_eight_rows_make_the_same_update_in_every_way(lines_of):
    rows = table(lines_of(gradient_accumulation))
    ways = [tuple(map(int, row[:3])) for row in rows]
    assert ways[:3] == [(8, 1, 1), (2, 4, 1), (2, 1, 4)]
    assert {row[4] for row in rows} == {"equal"}
    assert len({row[3] for row in rows}) == 1


def test_output_modes_return_the_rows_they_say(lines_of):
    rows = table(lines_of(device_iterations))
    assert [row[:4] for row in rows[:5]] == [
        ["1", "Final", "[]", "[4, 3]"],
        ["8", "Final", "[]", "[4, 3]"],
        ["8", "All", "[8]", "[32, 3]"],
        ["8", "Sum", "[]", "[4, 3]"],
        ["8", "EveryN(4)", "[2]", "[8, 3]"],
    ]
    assert all(float(row[4]) > 0 for row in rows)


def test_an_ensemble_trains_as_its_members_would_alone(lines_of):
    rows = table(lines_of(replicas))
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert {row[3] for row in rows} == {"equal"}
    assert len({row[1] for row in rows}) == 4
    assert all(float(row[2]) < 0.1 for row in rows)


def test_pipelining_shows_its_placement_and_equal_losses(lines_of):
    lines = lines_of(pipelining)
    assert [line.split()[:4] for line in lines[1:5]] == [
        [f"layer{index}", str(index), "0", str(index)] for index in range(4)
    ]
    assert lines[5] == "4 stages, 4 IPUs"
    first, last = map(float, re.findall(r"\d+\.\d+", lines[6]))
    assert last < first / 2
    assert lines[7] == "Without blocks: the same losses"


def test_pipelined_losses_that_are_rounded_otherwise_are_said_to_differ_by_that(
    monkeypatch, lines_of
):
    losses = iter(([1.0, 0.5], [1.0, 0.5 * (1 + 1e-6)]))
    trainer = type("Trainer", (), {"placement": "4 stages"})
    monkeypatch.setattr(pipelining, "train", lambda model: (trainer, next(losses)))
    assert lines_of(pipelining)[-1] == "Without blocks: losses differ by at most 1e-06"
