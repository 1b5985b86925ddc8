"""The report is well-formed, complete, needs nothing else, and says what the numbers say."""

import math
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from cosmictagger.measures import KEYS
from cosmictagger.results import report
from cosmictagger.results.tally import Neutrino, Row, Tally, as_csv

NOTHING = torch.zeros(3, 3, 3, dtype=torch.int64)
VOID = {"meta", "img", "br", "link", "input"}
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000a49444154789c63000100000500010d0a2db40000000049454e44ae426082"
)


class Page(HTMLParser):
    """Checks that tags are balanced; collects headings, text, and what the page points to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.text, self.addresses = [], [], "", []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)
        if "style" not in self.open:
            self.text += data + "\n"


def metrics(value):
    return dict.fromkeys(KEYS, value)


@pytest.fixture
def tally():
    rows = [
        Row(entry, (1, 2, entry), metrics(value), Neutrino(0.4 + entry, "nu_mu", "CC"))
        for entry, value in enumerate((0.96, 0.98, 0.97))
    ]
    confusion = torch.zeros(3, 3, 3, dtype=torch.int64)
    confusion[0] = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 1]])
    return Tally(rows, confusion)


def content(tally, tmp_path=None, **others):
    displays = []
    if tmp_path is not None:
        (tmp_path / "a.png").write_bytes(PIXEL)
        displays = [(tally.rows[0], tmp_path / "a.png")]
        others["picture"] = tmp_path / "a.png"
    proof = {
        "mode": "IPU",
        "target": "cpu",
        "executable hash": "abc123",
        "compile seconds": 1.5,
        "x": None,
    }
    return report.Content("A <pass> & more", proof, {"network": "a21"}, tally, displays, **others)


def test_a_page_in_one_file_with_all_its_sections(tally, tmp_path):
    shown = content(tally, tmp_path, files={"predictions.h5": "Scores."})
    page = Page(report.page(shown))
    assert page.headings == [
        "A <pass> & more",
        "Where it ran",
        "Metrics",
        "By plane",
        "What was taken for what",
        "Training",
        "Events",
        "run 1, subrun 2, event 0 (entry 0): mean IoU 96.00 %",
        "Files beside this page",
    ]
    assert len(page.addresses) == 2
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)


def test_the_page_proves_where_it_ran(tally):
    text = Page(report.page(content(tally))).text
    for wanted in ("IPU", "cpu", "abc123", "1.5", "none", "a21"):
        assert f"\n{wanted}\n" in text


def test_training_says_where_it_is_and_what_its_loss_shows(tmp_path):
    steps = np.arange(100.0)
    train = {"step": steps, "loss": 2 + steps % 2, "Average/Neutrino_IoU": steps / 200}
    curves = {"train": train, "test": {"step": steps[::50], "loss": steps[::50]}}
    (tmp_path / "a.png").write_bytes(PIXEL)
    shown = report.Content("Training", {}, {}, None, curves=curves, picture=tmp_path / "a.png")
    page = Page(report.page(shown))
    assert page.headings == ["Training", "Where it ran", "Training"]
    rows = " ".join(page.text.split())
    # Of the last tenth: steps 90 to 99, and the last one of two validations.
    assert "Loss 2.500 ± 0.167 50.000" in rows
    assert "Neutrino IoU 47.25 ± 0.48 %" in rows
    assert "can rise while the neutrino IoU triples" in rows


def test_targets_are_judged_one_by_one(tally):
    text = Page(report.page(content(tally))).text
    assert text.count("✓ reached") == 3  # 0.97 in all; the target of the total accuracy is higher
    assert text.count("✗ not reached") == 1
    assert "3 of 4 targets" in text
    for goal in ("> 99.90 %", "> 95.00 %", "> 90.00 %", "> 70.00 %"):
        assert goal in text


def test_texts_from_elsewhere_are_escaped(tally):
    bad = "<script>alert(1)</script>"
    tally.rows[0] = Row(0, (1, 2, 3), metrics(0.5), Neutrino(1.0, bad, bad))
    shown = report.Content(bad, {bad: bad}, {}, tally, files={bad: bad})
    text = report.page(shown)
    assert "<script" not in text
    assert bad in Page(text).text


def test_the_pages_of_programs_are_linked_and_other_files_are_not(tally):
    files = {"compute/inference/report.html": "Its program.", "predictions.h5": "Scores."}
    page = Page(report.page(content(tally, files=files)))
    assert [each for each in page.addresses if not each.startswith("data:")] == [
        "compute/inference/report.html"
    ]
    assert "predictions.h5" in page.text


def test_without_labels_the_page_says_so():
    tally = Tally([Row(0, (1, 1, 1), {})], NOTHING)
    page = Page(report.page(content(tally)))
    assert "1 event. The file has no labels" in page.text
    assert "Metrics" not in page.headings


def test_means_leave_out_events_without_the_metric():
    rows = [Row(0, (0, 0, 0), {"a": 1.0}), Row(1, (0, 0, 1), {"a": math.nan})]
    tally = Tally(rows, NOTHING)
    assert (tally.mean("a").value, tally.mean("a").count) == (1.0, 1)
    assert math.isnan(tally.mean("a").error)
    assert math.isnan(tally.mean("b").value)


def test_an_error_is_that_of_the_mean(tally):
    """Of 0.96, 0.98 and 0.97: a standard deviation of 0.01, over the root of three."""
    mean = tally.mean("Average/mIoU")
    assert mean == (pytest.approx(0.97), pytest.approx(0.01 / 3**0.5), 3)
    text = Page(report.page(content(tally))).text
    assert "97.00 ± 0.58 %" in text
    assert "± is the standard error of the mean" in text


def test_the_table_of_events_as_csv(tally):
    lines = as_csv(tally.rows, ["Average/mIoU"]).splitlines()
    assert lines[0].startswith("entry,run,subrun,event,Average/mIoU,neutrino_energy")
    assert lines[1] == "0,1,2,0,0.96000,0.40000,nu_mu,CC"
