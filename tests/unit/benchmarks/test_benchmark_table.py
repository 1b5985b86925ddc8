"""The table of peers: twins compute the same, failures become results, records become rows."""

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT))

from benchmarks.table import command, measuring, page, serving, ways  # noqa: E402 - after the path
from benchmarks.table.rows import ABELE, COMPILE, EAGER, JAX, ROWS, SETS  # noqa: E402

SMALL = dataclasses.replace(ROWS["introduction-4"], name="small", title="small", batch=2)


def turns(row=SMALL, names=(EAGER, ABELE), **changed):
    settings = {"threads": 1, "windows": 10, "window_s": 0.01, "limit_s": 200, "cached": False}
    return measuring.Turns(row, names, **{**settings, **changed})


# -- the same step in every way --------------------------------------------------------------------


TWINS = """
import dataclasses, json
from benchmarks.table import ways
from benchmarks.table.rows import EAGER, JAX, ROWS
twins = {row.twin: dataclasses.replace(row, batch=2) for row in ROWS.values() if row.twin}
for row in twins.values():
    steps = [ways.prepare(row, way) for way in (EAGER, JAX)]
    print(json.dumps([row.name, *([ways.number(step()) for _ in range(3)] for step in steps)]))
"""


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs the extra bench")
def test_twins_take_the_steps_of_plain_pytorch():
    # In a process of its own: JAX changes the environment and forbids forks.
    done = subprocess.run([sys.executable, "-c", TWINS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compared = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(compared) == len({row.twin for row in ROWS.values()} - {None})
    for name, plain, twin in compared:
        assert twin == pytest.approx(plain, rel=1e-4), name


@pytest.mark.parametrize("name", ["introduction-1", "mlp", "gpt"])
def test_the_wrapper_takes_the_steps_of_plain_pytorch(name, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    row = dataclasses.replace(ROWS[name], batch=2)
    plain, ours = ways.prepare(row, EAGER), ways.prepare(row, ABELE)
    for _ in range(3):
        assert ways.number(ours()) == ways.number(plain())


def test_a_network_without_a_twin_is_not_written():
    answer = serving.Server(ROWS["resnet18"], JAX).answer(["start"])
    assert answer == {"failed": "not written"}


def test_inference_is_compared_by_the_size_of_its_first_result():
    assert ways.number((torch.tensor([1.0, -3.0]), torch.ones(2))) == 2.0
    assert ways.number((torch.ones(2), torch.tensor(0.5))) == 0.5


# -- failures are results --------------------------------------------------------------------------


def test_a_way_that_raises_answers_with_the_reason():
    def broken(_):
        raise RuntimeError("no such operator\nand much more")

    row = dataclasses.replace(SMALL, model=broken)
    answer = serving.Server(row, EAGER).answer(["start"])
    assert answer == {"failed": "RuntimeError: no such operator"}


def test_a_way_with_other_losses_is_not_fast_but_failed():
    row = turns()
    row._results = {
        EAGER: {"values": [2.0, 1.9]},
        ABELE: {"values": [2.0, 1.9001]},
        COMPILE: {"values": [2.0, 1.8]},
        JAX: {"values": [2.0, math.nan]},
    }
    row._compare()
    assert [way for way, result in row._results.items() if "failed" in result] == [COMPILE, JAX]
    assert row._results[COMPILE]["failed"] == "its first losses are [2.0, 1.8], eager's [2.0, 1.9]"


def test_fewer_windows_than_a_median_needs_are_refused():
    with pytest.raises(ValueError, match="At least 10 windows are needed, got 3"):
        turns(windows=3)


def test_a_row_that_does_not_exist_is_named(capsys):
    with pytest.raises(SystemExit):
        command.run(["--rows", "mlp,other"])
    assert "other is not known; known are introduction-1" in capsys.readouterr().err


@pytest.mark.long
def test_rows_are_measured_in_processes_of_their_own(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    row = turns(ROWS["introduction-4"], (EAGER, ABELE), cached=True).measure()
    for way in (EAGER, ABELE):
        assert len(row["ways"][way]["step_per_s"]["windows"]) == 10
        assert row["ways"][way]["peak_mib"] >= row["ways"][way]["step_peak_mib"] > 0
    assert row["ways"][ABELE]["cached_first_step_s"] > 0
    assert len(row["ways"][ABELE]["users_first_steps_s"]) == 3
    assert row["ratio"][EAGER] == 1.0
    assert row["ratio"][ABELE] > 0


@pytest.mark.long
def test_a_process_that_is_late_or_ends_is_a_failure(monkeypatch):
    row = turns(ROWS["introduction-4"], (EAGER,), limit_s=0.0).measure()
    assert row["ways"][EAGER]["failed"] == "no answer to start within 0 s"
    monkeypatch.setattr(measuring, "ROOT", Path(__file__).parent)  # there is no package there
    row = turns(ROWS["introduction-4"], (EAGER,)).measure()
    assert "ended with exit code 1 at start: " in row["ways"][EAGER]["failed"]


# -- from records to the page ----------------------------------------------------------------------


def record(folder, day, rows, threads=2, cpu="a processor"):
    environment = {"cpu": cpu, "gpu": None, "threads": threads}
    path = folder / f"table_{cpu.replace(' ', '-')}_{threads}t_{day}.json"
    path.write_text(json.dumps({"environment": environment, "rows": rows}))


def result(abele, **others):
    rates = {EAGER: 100.0, ABELE: abele, **others}
    results = {
        way: {"step_per_s": {"median": rate}, "step_peak_mib": 200.0, "first_step_s": 2.0}
        for way, rate in rates.items()
    }
    return {"title": "", "ways": results, "ratio": measuring.ratios(results)}


def lines(folder, name, rows="table"):
    title = ROWS[name].title
    return [
        line
        for line in page.table(folder, "records", rows).splitlines()
        if line.startswith(f"| {title} |")
    ]


@pytest.mark.parametrize("rows", SETS)
def test_a_row_without_a_record_says_so(rows, tmp_path):
    for name in SETS[rows]:
        assert "no record yet" in lines(tmp_path, name, rows)[0]


def test_a_table_has_the_rows_of_its_set(tmp_path):
    record(tmp_path, "2026-01-01", {"mlp": result(150.0), "vit-s": result(200.0)})
    assert "1.50 x" in lines(tmp_path, "mlp")[0]
    assert "2.00 x" in lines(tmp_path, "vit-s", "real")[0]
    assert lines(tmp_path, "vit-s") == lines(tmp_path, "mlp", "real") == []
    means = [page.table(tmp_path, "records", rows).count("mean of 1 rows") for rows in SETS]
    assert means == [1, 1]


def test_a_set_is_measured_whole_unless_rows_are_named(monkeypatch, tmp_path):
    measured = []
    monkeypatch.setattr(torch, "set_num_threads", str)  # it would stay for other tests

    def turn(row, *_, **__):
        measured.append(row.name)
        return turns(row)

    monkeypatch.setattr(command, "Turns", turn)
    monkeypatch.setattr(command, "together", lambda several: [result(1.0) for _ in several])
    monkeypatch.setattr(command, "_print", lambda *_: None)
    for arguments in (["--set", "real"], ["--set", "real", "--rows", "mlp"]):
        command.run([*arguments, "--out", str(tmp_path)])
    assert measured == [*SETS["real"], "mlp"]


def test_numbers_of_threads_are_measured_beside_each_other(monkeypatch, tmp_path, capsys):
    order = []
    monkeypatch.setattr(measuring.Turns, "begin", lambda self, _: order.append(self._threads))
    monkeypatch.setattr(measuring.Turns, "window", lambda self: order.append(self._threads))
    rates = {1: result(300.0), 3: result(900.0, eager=150.0, **{COMPILE: 200.0})}
    monkeypatch.setattr(
        measuring.Turns, "end", lambda self: {**rates[self._threads], "title": "an MLP"}
    )
    monkeypatch.setattr(torch, "set_num_threads", str)  # it would stay for other tests
    arguments = ["--set", "threads", "--rows", "mlp", "--threads", "1,3", "--out", str(tmp_path)]
    assert command.run(arguments) == 0
    assert order == [1, 3] * 11
    assert "an MLP, 3 threads" in capsys.readouterr().out
    (line,) = [each for each in page.scaled(tmp_path, "records").splitlines() if "MLP" in each]
    assert "| 3.00 x | **3.00**, 1.50, - | [json](records/threads_" in line


def test_threads_are_as_many_as_cores_and_a_table_has_one_number(monkeypatch, capsys):
    monkeypatch.setattr(command.processor, "cores", lambda: 6)
    assert command._parsed(["--set", "threads"]).threads == [1, 2, 4]
    assert command._parsed([]).threads == [2]
    for wrong, said in (("1,2", "--set table has one number"), ("0", "0 are no numbers of")):
        with pytest.raises(SystemExit):
            command._parsed(["--threads", wrong])
        assert said in capsys.readouterr().err


def test_each_core_gives_a_thread_before_one_gives_two(monkeypatch):
    pairs = {0: "0-1", 1: "0-1", 2: "2,10", 10: "2,10", 3: ""}
    monkeypatch.setattr(serving.Path, "read_text", lambda path: pairs[int(path.parts[5][3:])])
    assert sorted(pairs, key=serving._place_in_core) == [0, 2, 3, 1, 10]


def test_the_newest_record_of_each_row_is_shown(tmp_path):
    record(tmp_path, "2026-01-02", {"mlp": result(150.0)})
    record(tmp_path, "2026-01-02_2", {"mlp": result(300.0, jax=200.0)})
    record(tmp_path, "2026-01-01", {"mlp": result(50.0), "gpt": result(200.0)})
    (mlp,), (gpt,) = lines(tmp_path, "mlp"), lines(tmp_path, "gpt")
    assert "| not measured | 2.00 x | 3.00 x | 1.50 x | 1.00 x | - | 2.0 s | 2.0 s |" in mlp
    assert "table_a-processor_2t_2026-01-02_2.json" in mlp
    assert "2.00 x" in gpt
    mean = [
        line for line in page.table(tmp_path, "records").splitlines() if "geometric mean" in line
    ]
    assert mean == ["| geometric mean of 2 rows | | | 2.45 x | 1.50 x | | | | | |"]


def test_machines_with_more_rows_beside_other_compilers_come_first(tmp_path):
    alone = {"mlp": result(150.0), "gpt": result(150.0)}
    record(tmp_path, "2026-01-02", alone, cpu="a processor")
    record(tmp_path, "2026-01-01", {"mlp": result(300.0, jax=200.0)}, cpu="b processor")
    text = page.table(tmp_path, "records")
    assert 0 <= text.find("b processor") < text.find("a processor")


def test_the_compact_table_is_of_the_machine_measured_last_beside_other_compilers(tmp_path):
    for cpu, day in (("a processor", "2026-01-01"), ("b processor", "2026-01-02")):
        record(tmp_path, day, {"mlp": result(300.0, jax=200.0)}, cpu=cpu)
    record(tmp_path, "2026-01-03", {"mlp": result(150.0)}, cpu="c processor")
    text = page.compact(tmp_path, "records")
    assert text.startswith("b processor, 2 threads:")
    assert f"| {ROWS['mlp'].title} | - | 2.00 x | 3.00 x | 1.50 x | 1.00 x | 2.0 s |" in text
    assert "Records: [1](records/table_b-processor_2t_2026-01-02.json)." in text
    assert "a processor" not in text


def test_the_compact_table_without_a_record_says_how_to_make_one(tmp_path):
    assert page.compact(tmp_path, "records") == "No record yet: `python -m benchmarks table`.\n"


def test_thread_counts_have_tables_of_their_own(tmp_path):
    for threads in (1, 2):
        record(tmp_path, "2026-01-01", {"mlp": result(150.0)}, threads)
    assert len(lines(tmp_path, "mlp")) == 2


def test_a_peer_that_failed_is_shown_as_that(tmp_path):
    row = result(150.0)
    row["ways"][COMPILE] = {"failed": "RuntimeError: no"}
    row["ways"][JAX] = {"failed": "not written"}
    row["ratio"] = measuring.ratios(row["ways"])
    record(tmp_path, "2026-01-01", {"mlp": row})
    assert "| failed | not written | 1.50 x | - |" in lines(tmp_path, "mlp")[0]
