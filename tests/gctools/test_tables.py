"""Boxes: aligned, as wide as asked, and free of what others could smuggle into them."""

import io

import pytest

from gctools import _text
from gctools._tables import Column, box, can_print, clean, table, width_of

COLUMNS = (
    Column("PID", "Who", align=">"),
    Column("Command", "Who", least=10),
    Column("User", "Who", rank=1),
    Column("Temp", "A long name of a group", align=">", rank=2),
)
ROWS = [[["7", "python train.py --long", "ada", "41"]], [["1234", "x", "bob", ""]]]


def test_a_table():
    assert table(COLUMNS, ROWS, None).splitlines() == [
        "+--------------------------------------+------------------------+",
        "|                 Who                  | A long name of a group |",
        "+------+------------------------+------+------------------------+",
        "| PID  |        Command         | User |          Temp          |",
        "+------+------------------------+------+------------------------+",
        "|    7 | python train.py --long | ada  |                     41 |",
        "+------+------------------------+------+------------------------+",
        "| 1234 | x                      | bob  |                        |",
        "+------+------------------------+------+------------------------+",
    ]


@pytest.mark.parametrize(
    ("width", "titles", "command"),
    [
        (60, ["PID", "Command", "User", "Temp"], "python train.py --long"),
        (40, ["PID", "Command", "User", "Temp"], "python train..."),
        (30, ["PID", "Command", "User"], "python tr..."),
        (20, ["PID", "Command"], "python..."),
    ],
)
def test_a_table_fits_by_cutting_texts_and_then_by_leaving_columns_out(width, titles, command):
    lines = table(COLUMNS, ROWS, width).splitlines()
    assert {len(line) for line in lines} <= set(range(width + 1))
    assert len({len(line) for line in lines}) == 1
    assert [part.strip() for part in lines[3].strip("|").split("|")] == titles
    assert f"| {command}" in lines[5]


def test_a_terminal_too_small_for_anything_still_gets_a_table():
    assert {len(line) for line in table(COLUMNS, ROWS, 5).splitlines()} == {19}


def test_a_box_in_two_parts():
    assert box(["gc", "the rest"], 30).splitlines() == [
        "+----+-----------------------+",
        "| gc |        the rest       |",
        "+----+-----------------------+",
    ]
    assert {len(line) for line in box(["the only text that is too long"], 20).splitlines()} == {20}


def test_letters_of_two_columns_and_marks_of_none_keep_boxes_straight():
    rows = [[["1", "訓練.py", "ada", "1"]], [["2", "e\u0301tude", "bob", "2"]]]
    lines = table(COLUMNS, rows, None).splitlines()
    assert "| 訓練.py |" in lines[5]
    assert "| e\u0301tude   |" in lines[7]


def test_command_lines_cannot_move_the_cursor():
    assert clean("a\x1b[31mb\nc\u202ed\t\0e") == "a [31mb c d e"


def test_a_terminal_without_the_letter_gets_a_question_mark():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert can_print(stream, "é|") == "?|"


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
    assert _text.elapsed(seconds) == text
