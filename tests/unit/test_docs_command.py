"""The command ``abele docs``: pages for people who have only the wheel."""

import re
from pathlib import Path

import pytest

from abele import __main__, docs
from abele.port import finding
from abele.port.rules import BY_TARGET

ROOT = Path(__file__).parents[2]


def test_all_pages_are_listed_with_their_titles(capsys):
    assert __main__.main(["docs"]) == 0
    listed = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    paths = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    expected = {path.with_suffix("").as_posix() for path in paths if path.stem != "README"}
    assert set(listed) == expected
    assert listed["reference/options"] == "All options"


def test_a_page_is_printed_by_name_or_by_the_path_that_messages_have(capsys):
    for page in ("sambaflow", "docs/sambaflow.md"):
        assert __main__.main(["docs", page]) == 0
        expected = (ROOT / "docs" / "sambaflow.md").read_text()
        assert capsys.readouterr().out == expected


def test_every_code_of_a_port_can_be_looked_up(capsys):
    codes = {code for rules in BY_TARGET.values() for rule in rules for code in rule.codes}
    for code in codes:
        assert __main__.main(["docs", finding.docs_of(code)]) == 0
        assert re.match(rf"\| `{code}` \| \S", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("sambaflw", "There is no page 'sambaflw'. Did you mean sambaflow?"),
        ("zzz", "There is no page 'zzz'. abele docs lists all pages."),
        ("port_codes#abp999", "port_codes#abp999 names no anchor of the page."),
    ],
)
def test_pages_and_anchors_that_do_not_exist(page, said, capsys):
    assert __main__.main(["docs", page]) == 1
    assert capsys.readouterr().err == f"abele docs: {said}\n"


def test_an_installation_without_pages_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(docs, "_FOLDERS", (tmp_path / "a", tmp_path / "b"))
    assert __main__.main(["docs"]) == 1
    assert "No pages are installed: " in capsys.readouterr().err


def test_the_pages_of_a_wheel_come_before_those_of_a_checkout(tmp_path, monkeypatch):
    (tmp_path / "reference").mkdir()
    (tmp_path / "one.md").write_text("# One\n")
    monkeypatch.setattr(docs, "_FOLDERS", (tmp_path, ROOT / "docs"))
    assert docs.pages() == {"one": tmp_path / "one.md"}
