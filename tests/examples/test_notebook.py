"""The notebook runs from start to end, and its saved outputs are what a run gives."""

import re
from pathlib import Path

import pytest

from abele import get_target

nbformat = pytest.importorskip("nbformat", reason="optional extra: pip install abele[test]")
nbclient = pytest.importorskip("nbclient", reason="optional extra: pip install abele[test]")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUMBER = re.compile(r"(?<![\w#])\d[\d,.]*(?:e-?\d+)?(?!\w)")


def shown(cell):
    """What a cell prints and returns, but for times and for the points of curves."""
    parts = [each.text for each in cell.outputs if each.get("name") == "stdout"]
    parts += [each.data.get("text/html", "") for each in cell.outputs if "data" in each]
    return re.sub(r' d="[^"]*"', "", "\n".join(parts))


@pytest.mark.compiler
def test_saved_outputs_are_those_of_a_run(tmp_path, monkeypatch):
    if reason := get_target("cpu").cannot_compile():
        pytest.skip(reason)
    monkeypatch.setenv("ABELE_START", "wait")  # what runs after some steps is known then
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES.parent / 'src'}:{EXAMPLES}")
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    saved = nbformat.read(EXAMPLES / "introduction.ipynb", as_version=4)
    notebook = nbformat.read(EXAMPLES / "introduction.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        coalesce_streams=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    cells = [cell for cell in saved.cells if cell.cell_type == "code"]
    assert [each.execution_count for each in cells] == list(range(1, len(cells) + 1))
    for before, cell in zip(saved.cells, notebook.cells, strict=True):
        if cell.cell_type != "code":
            continue
        one, two = shown(before), shown(cell)
        assert NUMBER.sub("#", one) == NUMBER.sub("#", two)
        numbers = [
            [float(n.rstrip(".").replace(",", "")) for n in NUMBER.findall(t)] for t in (one, two)
        ]
        # Losses and accuracies of other processors differ; counts do not come near the tolerance.
        assert numbers[0] == pytest.approx(numbers[1], rel=0.15), cell.source
    assert sum("<svg" in shown(cell) for cell in notebook.cells if "outputs" in cell) == 2
