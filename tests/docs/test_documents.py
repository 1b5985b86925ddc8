"""The documents' code runs: pages block by block, README's program, the tour."""

import re
from pathlib import Path

import pytest

from helpers.warm_python import run_program

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*GUIDES, ROOT / "README.md", ROOT / "examples" / "README.md"]
PAGES += sorted((ROOT / "benchmarks" / "notes").glob("*.md"))
INDEX = (ROOT / "docs" / "README.md").read_text()
BLOCK = re.compile(r"```python\n(.*?)```", re.S)


def run(code, tmp_path):
    script = tmp_path / "document.py"
    script.write_text(code)
    variables = {"ABELE_TARGET": "reference", "PYTHONPATH": str(ROOT / "src")}
    return run_program(script, cwd=tmp_path, **variables)


def blocks(name):
    return "\n".join(BLOCK.findall((ROOT / name).read_text()))


def test_quickstart(tmp_path):
    done = run(blocks("docs/quickstart.md"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("reference ")


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints",
        "distributed",
        "half_precision",
        "loaded_models",
        "loading",
        "notebooks",
        "observing",
        "pipelines",
        "report",
        "saving",
        "stages",
        "starting",
        "torch_compile",
        "why_different",
        "why_runs_differ",
    ],
)
def test_a_document_of_blocks(name, tmp_path):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    assert len(page.splitlines()) <= 100
    assert "Every block on this page is run by the tests" in " ".join(page.split())
    done = run(blocks(f"docs/{name}.md"), tmp_path)
    assert done.returncode == 0, done.stderr


def prose(page):
    """Return the number of words outside of code blocks."""
    return len(re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.S | re.M).split())


def linked(heading):
    """Return the pages that a section of the index links."""
    section = INDEX.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [ROOT / "docs" / name for name in re.findall(r"\]\(([\w-]+\.md)\)", section)]


def test_the_index_has_every_page_once_by_purpose():
    sections = ("Tutorials", "How-to guides", "Explanation")
    found = [page for section in sections for page in linked(section)]
    assert sorted(found) == [page for page in GUIDES if page.name != "README.md"]


def test_guides_have_at_most_600_words():
    words = {page.name: prose(page) for page in linked("How-to guides")}
    assert {name: count for name, count in words.items() if count > 600} == {}


def test_pages_by_hand_have_at_most_25000_words():
    assert sum(map(prose, [*GUIDES, ROOT / "README.md"])) <= 25_000


def test_the_port_of_the_tutorial(tmp_path):
    script = BLOCK.findall((ROOT / "docs" / "from_pytorch.md").read_text())[0]
    (tmp_path / "train.py").write_text(script)
    words = ("port", "train.py", "-o", "ported", "--check", "20")
    variables = {"PYTHONPATH": str(ROOT / "src")}
    done = run_program("-m", "abele", *words, cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +20 +0\.05388\d+ .* equal +same +equal$", done.stdout, re.M)
    assert "lines: 0 match, 7 modified, 0 manual, 0 blocked" in done.stdout
    assert "equal to its original for 20 steps: losses and 4 tensors" in done.stdout


def test_the_program_of_the_first_distributed_run(tmp_path):
    done = run(blocks("docs/first_distributed_run.md"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.match(r"32 updates per epoch, weights (8\.0000|7\.999\d)$", done.stdout.strip())


def test_the_tour_of_the_engine_names_every_folder():
    folder = ROOT / "src" / "abele"
    tour = (folder / "README.md").read_text()
    for path in folder.glob("*/__init__.py"):
        assert f"]({path.parent.name})" in tour


def test_the_table_of_examples_is_complete():
    table = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        assert f"[`{path.name}`]({path.name})" in table


def test_readme_program_is_what_it_prints(tmp_path):
    done = run(blocks("README.md"), tmp_path)
    assert done.returncode == 0, done.stderr
    printed = re.search(r"^(loss .*) on target cpu$", (ROOT / "README.md").read_text(), re.M)
    assert done.stdout.strip() == f"{printed[1]} on target reference"


def test_tour(tmp_path):
    done = run((ROOT / "docs/tour.py").read_text(), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "bitwise equal to plain PyTorch" in done.stdout


def headings(page):
    """What links of GitHub call the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    named = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", "\n".join(re.findall(r"^#+ (.*)$", text, re.M)))
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in named.splitlines()}


def test_links_point_somewhere():
    for page in PAGES:
        text = page.read_text()
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (page.parent / link).exists(), f"{page.name} links {link}"
        for link, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text):
            linked = page.parent / link if link else page
            assert anchor in headings(linked), f"{page.name} links {link}#{anchor}"


def test_the_module_of_the_device_tools(tmp_path):
    done = run(blocks("docs/gc-tools.md"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 2
