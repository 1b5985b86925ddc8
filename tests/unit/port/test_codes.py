"""Codes: each that is said is explained, and each that is explained is said somewhere."""

import re
from pathlib import Path

from abele.port.finding import docs_of
from abele.port.rules import BY_TARGET, CODES

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "abele" / "port"


def test_codes_are_explained_and_used():
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert set(re.findall(r'"(ABP\d+)"(?!:)', text)) == set(CODES)
    assert all(code_text.endswith(".") for code_text in CODES.values())


def test_a_code_belongs_to_one_rule():
    rules = {id(rule.codes): rule.codes for rules in BY_TARGET.values() for rule in rules}
    assert len(CODES) == sum(map(len, rules.values()))


def test_each_code_has_its_place_in_the_documentation():
    for code in CODES:
        page, place = docs_of(code).split("#")
        assert (ROOT / page).read_text().count(f'<a id="{place}"></a>`{code}`') == 1, code
