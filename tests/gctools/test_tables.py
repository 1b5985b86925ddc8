"""Boxes: aligned, as wide as asked, and free of what others could smuggle into them."""

import io

import pytest

from gctools import _commands
from gctools._commands import width_of
from gctools._tables import Column, box, table

COLUMNS = (
    Column("PID", align="right"),
    Column("Command", least=10),
    Column("User", rank=1),
    Column("Temp", align="right", rank=2),
)
ROWS = [[["7", "python train.py --long", "ada", "41"]], [["1234", "x", "bob", ""]]]


def cells(line):
    return [part.strip() for part in line.strip("|").split("|")]


def test_a_table():
    title, *lines = table(COLUMNS, ROWS, None, "Who is here").splitlines()
    assert title == "Who is here"
    assert cells(lines[1]) == ["PID", "Command", "User", "Temp"]
    assert cells(lines[3]) == ["7", "python train.py --long", "ada", "41"]
    assert cells(lines[5]) == ["1234", "x", "bob", ""]
    assert lines[0] == lines[2] == lines[4] == lines[6]  # a rule between groups
    assert lines[5].startswith("| 1234 | x  ")


@pytest.mark.parametrize(
    ("width", "titles", "command"),
    [
        (60, ["PID", "Command", "User", "Temp"], "python train.py --long"),
        (40, ["PID", "Command", "User", "Temp"], "python train.p…"),
        (30, ["PID", "Command", "User"], "python trai…"),
        (20, ["PID", "Command"], "python t…"),
    ],
)
def test_a_table_fits_by_cutting_texts_and_then_by_leaving_columns_out(width, titles, command):
    lines = table(COLUMNS, ROWS, width).splitlines()
    assert {len(line) for line in lines} <= set(range(width + 1))
    assert len({len(line) for line in lines}) == 1
    assert cells(lines[1]) == titles
    assert f"| {command}" in lines[3]


def test_a_terminal_too_small_for_anything_still_gets_a_table():
    lines = table(COLUMNS, ROWS, 5).splitlines()
    assert cells(lines[1]) == ["PID", "Command"]
    assert {len(line) for line in lines} == {19}


def test_a_box_in_two_parts():
    lines = box(["gc", "the rest"], 30).splitlines()
    assert cells(lines[1]) == ["gc", "the rest"]
    assert {len(line) for line in lines} == {30}
    assert {len(line) for line in box(["the only text that is too long"], 20).splitlines()} == {20}


def test_letters_of_two_columns_and_marks_of_none_keep_boxes_straight():
    rows = [[["1", "訓練.py", "ada", "1"]], [["2", "e\u0301tude", "bob", "2"]]]
    lines = table(COLUMNS, rows, None).splitlines()
    assert "| 訓練.py |" in lines[3]
    assert "| e\u0301tude   |" in lines[5]


def test_command_lines_are_no_markup():
    assert "| [red]x[/]" in table(COLUMNS, [[["1", "[red]x[/]", "", ""]]], None)


def test_width(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width_of(io.StringIO()) is None
    monkeypatch.setenv("COLUMNS", "72")
    assert width_of(io.StringIO()) == 72


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "N/A"), (9.9, "9s"), (241, "4m1s"), (12_000, "3h20m"), (190_800, "2d5h")],
)
def test_elapsed(seconds, text):
    assert _commands.elapsed(seconds) == text
