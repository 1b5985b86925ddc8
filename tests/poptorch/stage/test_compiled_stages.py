"""``abele stage --run`` and ``--measure`` where stages are compiled."""

import ast
import re

import pytest

from abele import __main__ as command_line
from abele import get_target
from helpers.staged import model_of

SCRIPT = (
    model_of(16, 64, 64, 32, 1)
    + """\
options = poptorch.Options().showCompilationProgressBar(False)
options.Training.gradientAccumulation(8)
trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
x, target = torch.ones(64, 16), torch.ones(64, 1)
print("losses", [trainer(x, target).item() for _ in range(3)])
print("stages", trainer.placement.stages)
print("lowerings", sorted({row.name for row in trainer.build_record.lowerings.values()}))
"""
)


@pytest.fixture
def script(tmp_path, monkeypatch):
    if get_target("cpu").cannot_compile() is not None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    monkeypatch.setenv("ABELE_START", "wait")
    monkeypatch.setenv("ABELE_LOWERING", "emitted")
    monkeypatch.setenv("ABELE_PIPELINE", "workers")  # also on one core
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.compiler
@pytest.mark.thorough
def test_a_program_runs_in_compiled_stages_that_were_measured(script, capsys):
    exec(compile(SCRIPT, str(script), "exec"), {"__name__": "__main__"})
    whole = losses_of(capsys.readouterr().out)
    assert command_line.main(["stage", str(script), "--ipus", "2", "--measure", "--run"]) == 0
    out, err = capsys.readouterr()
    assert losses_of(out) == pytest.approx(whole, rel=1e-5)
    assert "stages 2" in out
    assert "lowerings ['emitted']" in out
    assert "(measured)" in err
    assert re.search(r"device +stage +begins at +ms +waits", err)


def losses_of(out):
    return ast.literal_eval(re.search(r"^losses (.*)$", out, re.MULTILINE).group(1))
