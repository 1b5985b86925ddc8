"""The examples about batches and replicas end in the tables they promise."""

import pytest

pytest.importorskip("poptorch")

import device_iterations
import gradient_accumulation
import replicas


@pytest.fixture(autouse=True)
def on_reference(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


def table(program, capsys):
    """What a program prints, as rows of cells, without the heading."""
    program.main()
    lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in lines][1:]


def test_eight_rows_make_the_same_update_in_every_way(capsys):
    rows = table(gradient_accumulation, capsys)
    ways = [tuple(map(int, row[:3])) for row in rows]
    assert ways[:3] == [(8, 1, 1), (2, 4, 1), (2, 1, 4)]
    assert {row[4] for row in rows} == {"equal"}
    assert len({row[3] for row in rows}) == 1


def test_output_modes_return_the_rows_they_say(capsys):
    rows = table(device_iterations, capsys)
    assert [row[:4] for row in rows[:5]] == [
        ["1", "Final", "[]", "[4, 3]"],
        ["8", "Final", "[]", "[4, 3]"],
        ["8", "All", "[8]", "[32, 3]"],
        ["8", "Sum", "[]", "[4, 3]"],
        ["8", "EveryN(4)", "[2]", "[8, 3]"],
    ]
    assert all(float(row[4]) > 0 for row in rows)


def test_an_ensemble_trains_as_its_members_would_alone(capsys):
    rows = table(replicas, capsys)
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert {row[3] for row in rows} == {"equal"}
    assert len({row[1] for row in rows}) == 4
    assert all(float(row[2]) < 0.1 for row in rows)
