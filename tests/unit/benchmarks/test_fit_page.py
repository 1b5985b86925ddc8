"""The page says of the fit check what its record says; cells are measured once."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))

import fit_page  # noqa: E402 - after the path above; benchmarks are no package

RECORDS = sorted((ROOT / "benchmarks" / "records").glob("fit_*.json"))


def cell(way="interpreted", measured=100e6, **more):
    return {
        "model": "mlp",
        "setting": "sgd",
        "way": way,
        "measured": measured,
        "estimate": {"low": 90e6, "expected": 102e6, "high": 110e6},
        "limited": True,
        **more,
    }


REFUSED = {"model": "gpt", "setting": "sgd", "way": "interpreted", "refused": "killed"}


def test_errors_are_those_of_each_way():
    cells = [cell(), cell(measured=120e6), REFUSED, cell("compiled")]
    errors = fit_page.errors(cells)
    assert errors["interpreted"] == {
        "tried": 3,
        "cells": 2,
        "memory, median": 0.085,
        "memory, worst": 0.15,
        "inside": 0.5,
        "width, worst": 0.2,
        "width, median": 0.183,
        "limited": 3,
        "refused": 1,
    }
    assert errors["compiled"]["memory, worst"] == 0.02


def test_the_lines_have_every_way_and_setting():
    cells = [cell(), cell("compiled", setting="half"), REFUSED]
    said = fit_page.lines({"cells": cells, "errors": fit_page.errors(cells)})
    assert "2 models (mlp, gpt)" in said[0]
    assert "3 processes ran under their limit, 1 of them wanted more" in said[0]
    assert "| compiled | 1 | 2.0% | 2.0% | 100.0% | 20.0% | 20.0% |" in said
    assert "| sgd | 2.0% | - |" in said
    assert "| half | - | 2.0% |" in said


def test_a_cell_without_a_number_says_why():
    assert fit_page.line(REFUSED) == " refused: killed"
    assert fit_page.errors([REFUSED]) == {}


def test_cells_of_several_commits_say_so(tmp_path, monkeypatch):
    # Importing it sets these for a measurement; now they are put back.
    monkeypatch.setenv("ABELE_START", "wait")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    import fit

    record, folder = tmp_path / "record.json", tmp_path / "pieces"
    before = {"environment": {"commit": "aaa"}, "cells": [cell(), cell("compiled")]}
    record.write_text(json.dumps(before))
    folder.mkdir()
    newer = cell("compiled", measured=101e6, commit="bbb")
    (folder / "sgd--mlp--compiled.json").write_text(json.dumps(newer))
    asked = [("sgd", "mlp", way) for way in ("interpreted", "op by op", "compiled")]
    cells = fit.with_earlier(asked, folder, record)
    assert [each["commit"] for each in cells] == ["aaa", "bbb"]
    assert cells[1] == newer
    said = fit_page.lines({"cells": cells, "errors": fit_page.errors(cells)})
    assert "1 of commit aaa, 1 of commit bbb" in " ".join(said)
    assert max(map(len, said[:3])) <= 140
    assert "commit" not in " ".join(fit_page.lines({"cells": [cell()], "errors": {}}))


@pytest.mark.skipif(not RECORDS, reason="no record")
def test_the_page_has_the_record():
    records = {each: json.loads(each.read_text()) for each in RECORDS}
    # The table is of all ways to run a program. Records of one day have a number.
    whole = [each for each, record in records.items() if len(record["errors"]) == 3]
    newest = max(whole, key=lambda each: (records[each]["environment"]["date"], each.stem))
    page = (ROOT / "benchmarks" / "notes" / "fit.md").read_text()
    assert f"records/{newest.name}" in page
    assert "\n".join(fit_page.lines(json.loads(newest.read_text()))) in page
