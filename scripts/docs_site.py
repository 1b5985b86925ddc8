"""Hooks of mkdocs: links that leave docs/, headings named as on GitHub, and the navigation.

The site also has the pages and pictures of the repository that pages of docs/ link. Links to other
files lead to the repository's address, once pyproject.toml has one.
"""

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
MORE = "repository"  # folder of the site for what lies outside of docs/
PAGES = ("README.md", "examples/README.md", "benchmarks/notes/*.md")
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)#:\s]+)(#[^)\s]+)?\)")
_headings: dict[str, int] = {}


def on_config(config: Any) -> Any:
    """Name headings as GitHub does, and take the navigation from the index."""
    config["mdx_configs"]["toc"] = {"slugify": _slug, "permalink": True}
    index = (ROOT / "docs/README.md").read_text("utf-8")
    config["nav"] = [{"Home": ["README.md"]}, *_navigation(index), {"More": _outside()}]
    return config


def _outside() -> list[str]:
    paths = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
    return [f"{MORE}/{path.relative_to(ROOT).as_posix()}" for path in paths]


def _navigation(index: str) -> list[dict[str, Any]]:
    sections: list[dict[str, Any]] = []
    for part in index.split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        rows = re.findall(r"^\| \*\*(.*?)\*\* \| (.*) \|$", text, re.M)
        groups = [{name: _entries(links)} for name, links in rows] or _entries(text)
        sections.append({title: groups})
    api = [f"reference/{path.name}" for path in sorted((ROOT / "docs/reference").glob("*.md"))]
    (reference,) = (each["Reference"] for each in sections if "Reference" in each)
    named = {path for entry in reference for path in entry.values()}
    reference += [path for path in api if path not in named]
    return sections


def _entries(text: str) -> list[dict[str, str]]:
    found = LINK.findall(text)
    return [{title[:1].upper() + title[1:].replace("`", ""): path} for _, title, path, _ in found]


def _slug(text: str, _: str) -> str:
    slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    count = _headings[slug] = _headings.get(slug, -1) + 1
    return f"{slug}-{count}" if count else slug


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures outside of docs/ that pages link."""
    for name in _outside():
        _add(files, config, ROOT / name.removeprefix(f"{MORE}/"))
    for page in [*files.documentation_pages()]:
        folder = Path(page.abs_src_path).parent
        for picture, _, link, _ in LINK.findall(Path(page.abs_src_path).read_text("utf-8")):
            path = (folder / link).resolve()
            if picture and not path.is_relative_to(ROOT / "docs") and path.is_file():
                _add(files, config, path)
    return files


def _add(files: Any, config: Any, path: Path) -> None:
    name = f"{MORE}/{path.relative_to(ROOT).as_posix()}"
    if files.get_file_from_path(name) is None:
        files.append(File.generated(config, name, abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links that leave docs/.

    Raises:
        PluginError: a file that is linked does not exist.
    """
    _headings.clear()
    here = page.file.src_uri
    source = here.removeprefix(f"{MORE}/") if here.startswith(f"{MORE}/") else f"docs/{here}"

    def moved(match: re.Match[str]) -> str:
        picture, text, link, anchor = match.groups("")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links {link}, which does not exist.")
        uri = path.removeprefix("docs/") if path.startswith("docs/") else f"{MORE}/{path}"
        if files.get_file_from_path(uri):
            return f"{picture}[{text}]({posixpath.relpath(uri, posixpath.dirname(here))}{anchor})"
        return f"[{text}]({_address()}/blob/main/{path}{anchor})" if _address() else text

    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.S | re.M)
    parts[::2] = [LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts).replace("```python no-run", "```python")


def _address() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    address = project["urls"]["Repository"]
    return "" if "example.invalid" in address else address
