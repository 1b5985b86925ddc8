"""The API reference: nothing is missing, nothing is stale, every link meets its heading."""

import inspect
import json
import re
import subprocess
from pathlib import Path

import pytest

import poptorch
import poptorch.testing
from helpers.warm_python import python
from poptorch.options import _table

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
FACTS = ROOT / "tests" / "poptorch"
API = json.loads((FACTS / "interface.json").read_text())
NAMESPACES = json.loads((FACTS / "option_api.json").read_text())["namespaces"]
HEADING = re.compile(r"^#{1,6} (.+)$", re.M)
# Names in the facts that are torch's or modules; the front page lists the modules.
WITHOUT_PAGE = {"ops", "optim", "options", "enums", "poptorch_core", "profiling", "testing"}


@pytest.fixture(scope="module")
def text():
    return "\n".join(path.read_text() for path in sorted(FOLDER.glob("*.md")))


def test_pages_are_those_of_the_present_docstrings():
    # In a process of its own: what other tests did to this one must not be in the pages.
    command = [python(), ROOT / "scripts" / "gen_reference.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", [name for name in API if name != "dynamic"])
def test_every_public_name_has_a_heading(text, module):
    prefix = module.removeprefix("poptorch").lstrip(".")
    for name in set(API[module]) - WITHOUT_PAGE - {"__version__", "logger"}:
        heading = f"### `{prefix}.{name}`" if prefix else f"### `{name}`"
        assert heading in text, f"{module}.{name} is on no page of docs/reference"
    for name in WITHOUT_PAGE | {"__version__", "logger"}:
        assert f"- `poptorch.{name}`: " in text


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_setter_has_a_heading(text, namespace):
    section = text.split(f"\n### `{namespace}`\n")[1].split("\n### ")[0]
    for name in [*NAMESPACES[namespace]["methods"], *NAMESPACES[namespace]["properties"]]:
        result = f"#### `{name}`" in section or f"#### `{name}(" in section
        assert result or name.startswith("_"), f"{namespace}.{name}"


def test_no_private_class_is_a_heading(text):
    assert [name for name in re.findall(r"^### `(.+)`$", text, re.M) if name.startswith("_")] == []


def anchors(page):
    """Headings as GitHub names them, in order; equal ones get a number."""
    seen, results = {}, {}
    for title in HEADING.findall(re.sub(r"```.*?```", "", page, flags=re.S)):
        slug = re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", title).lower()).replace(" ", "-")
        number = seen[slug] = seen.get(slug, -1) + 1
        results[f"{slug}-{number}" if number else slug] = title
    return results


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda path: path.name)
def test_links_meet_the_headings_of_their_text(page):
    for shown, file, anchor in re.findall(r"\[`([^`]+)`\]\(([\w.]*)#([\w-]+)\)", page.read_text()):
        target = page if not file else FOLDER / file
        assert anchors(target.read_text()).get(anchor) == f"`{shown}`"


def test_docstrings_say_what_the_option_table_says():
    classes = {"Options": poptorch.Options()}
    for name in ("Training", "Precision", "Jit", "TensorLocations"):
        classes[name] = getattr(poptorch.Options(), name)
    silent = []
    for row in _table.TABLE:
        owner = type(classes.get(row.namespace))
        setter = getattr(owner, row.setter, None)
        if setter is None or row.status is not _table.Status.NO_EFFECT:
            continue
        doc = f"{inspect.getdoc(owner)} {inspect.getdoc(setter)}"
        if not re.search("no effect|warn|stored only", doc, re.I):
            silent.append(row.setter)
    assert silent == []
