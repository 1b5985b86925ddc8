"""The site of the documentation: its navigation, and links that leave ``docs``."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs")
ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts/docs_site.py")
site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site)


class Files:
    """The files of a site, as mkdocs knows them."""

    def __init__(self, *names):
        self.names = names

    def get_file_from_path(self, name):
        return name if name in self.names else None


def rewritten(text, page="gpu.md", files=()):
    here = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    return site.on_page_markdown(text, here, None, Files(*files))


def paths(entries):
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else (entry,):
            yield from paths(value) if isinstance(value, list) else (value,)


def test_the_navigation_has_every_page():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert set(paths(site._navigation(index))) == pages - {"README.md"}


def test_links_lead_to_pages_of_the_site_or_to_the_repository(monkeypatch):
    files = ("fit.md", "repository/README.md")
    monkeypatch.setattr(site, "_address", lambda: "https://example.org/abele")
    text = "[a](fit.md#b) [c](../README.md#install) [d](../LICENSE)\n```sh\n[e](f)\n```\n"
    assert rewritten(text, files=files) == (
        "[a](fit.md#b) [c](repository/README.md#install) "
        "[d](https://example.org/abele/blob/main/LICENSE)\n```sh\n[e](f)\n```\n"
    )
    monkeypatch.setattr(site, "_address", str)
    assert rewritten("[d](../LICENSE)") == "d"


def test_a_link_that_leads_nowhere_is_refused():
    with pytest.raises(site.PluginError, match=r"docs/gpu.md links ../nowhere.py, which does not"):
        rewritten("[a](../nowhere.py)")


def test_equal_headings_get_numbers_as_on_github():
    rewritten("")
    assert [site._slug("`Options`", ""), site._slug("`Options`", "")] == ["options", "options-1"]
