"""Cards of notebooks: escaped, without empty rows, with a curve; and pages inside of cells."""

import math
import re

from abele.report.card import Written, card


def test_a_card_escapes_texts_and_leaves_out_facts_without_a_value():
    text = card("a < b", [("target", "cpu & co"), ("fallback", "")])
    assert "<b>a &lt; b</b>" in text
    assert "cpu &amp; co" in text
    assert "fallback" not in text
    assert "<svg" not in text


def test_a_curve_goes_through_finite_losses():
    text = card("net", [], [(1, 4.0), (2, math.nan), (3, 1.0), (4, 2.0)])
    assert ">loss 4 to 2, call 1 to 4<" in text
    (path,) = re.findall(r'd="M([^"]*)"', text)
    points = [tuple(map(float, point.split(","))) for point in path.split("L")]
    assert points == [(250, 0), (750, 240), (1000, 160)]
    # Colours of a page's own theme would be missing in a notebook.
    assert "class=" not in text
    assert "var(" not in text
    assert "<svg" not in card("net", [], [(1, 4.0), (2, math.inf)])


def test_a_page_in_a_cell_has_links_of_its_own(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<!doctype html>\n<html><head></head><a href="#memory">"memory"</a></html>')
    written = Written(page)
    assert str(written) == written.__fspath__() == str(page)
    shown = written._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "&lt;head&gt;&lt;base href=&quot;about:srcdoc&quot;&gt;" in shown
