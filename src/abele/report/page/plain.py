"""The text of a page, for terminals: headings, sentences and tables without pictures."""

from __future__ import annotations

from html.parser import HTMLParser

#: Elements without words of their own: pictures, links inside the page, its title and style.
_SILENT = frozenset({"head", "svg", "nav"})
_LINES = frozenset({"h1", "h2", "h3", "p", "tr", "summary", "pre", "li"})
_CELLS = frozenset({"td", "th", "dd"})
#: Sections that a terminal has no room for: programs after each pass.
_LONG = frozenset({"programs"})


def as_text(page: str) -> str:
    """Return the text of an HTML page, a line for each paragraph and each row of a table.

    Args:
        page: as ``page`` or ``comparison.page`` returns it.
    """
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.text()


class _Reader(HTMLParser):
    """Collects the lines of a page."""

    def __init__(self):
        super().__init__()
        self._lines: list[str] = []
        self._line: list[str] = []
        self._silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a line or a cell, or skip an element."""
        if tag in _SILENT or (tag == "section" and dict(attrs).get("id") in _LONG):
            self._silent.append(tag)
        elif tag in _LINES or tag == "div":
            self._end_line()
            if tag in ("h2", "h3"):
                self._lines.append("")
        elif tag in _CELLS:
            self._line.append("  ")

    def handle_endtag(self, tag: str) -> None:
        """End a line, or an element that was skipped."""
        if self._silent and tag == self._silent[-1]:
            self._silent.pop()
        elif tag in _LINES or tag == "div":
            self._end_line()

    def handle_data(self, data: str) -> None:
        """Add text to the line."""
        if not self._silent:
            self._line.append(data.replace("\u200b", ""))

    def text(self) -> str:
        """Return all lines."""
        self._end_line()
        return "\n".join(self._lines).strip() + "\n"

    def _end_line(self) -> None:
        text, self._line = "".join(self._line).strip(), []
        if text:
            self._lines.append(text)
