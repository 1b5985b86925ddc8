"""Operations of an update have module and line of the parameter that they change."""

from pathlib import Path

import pytest
import torch

from abele.capture import capture
from abele.program.core import marks_of, node_phase
from abele.step.config import StepConfig
from helpers.runs import flat, rule_for


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 5), torch.nn.Linear(5, 3)

    def forward(self, x):
        hidden = self.first(x).relu()  # FIRST
        return torch.nn.functional.mse_loss(self.second(hidden), x)  # SECOND


LINES = {
    mark: f":{number} in forward"
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
    for mark in ("first", "second")
    if line.rstrip().endswith(f"# {mark.upper()}")
}


def programs(kind, accumulation=1, *, origins=True, **settings):
    config = StepConfig(training=True, gradient_accumulation=accumulation)
    net, x = Net(), torch.ones(2, 3)
    rule = rule_for(net, kind, settings=settings)
    return capture(lambda i: flat(net(*i)), net, [x], config, rule, origins=origins).by_name


def of_module(program):
    """The operations of the update, by the module that they are about."""
    modules = {}
    for node in program.graph.graph.nodes:
        if node.op == "call_function" and node_phase(node) == "update":
            modules.setdefault(marks_of(node).get("of_scope", ""), []).append(node)
    return modules


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_tensor_of_an_update_is_of_a_module_and_a_line(kind, accumulation):
    for name, program in programs(kind, accumulation, loss_scaling=2.0).items():
        modules = of_module(program)
        assert set(modules) - {""} == {"first", "second"}, name
        for module in ("first", "second"):
            lines = {marks_of(node)["of_line"] for node in modules[module]}
            assert len(lines) == 1
            assert lines.pop().endswith(LINES[module])
            sizes = {node.meta["val"].numel() for node in modules[module]}
            assert sizes >= ({15, 5} if module == "first" else {15, 3})
        # What several parameters share are numbers.
        assert all(node.meta["val"].numel() == 1 for node in modules.get("", []))


def test_nothing_is_noted_that_nobody_wants_and_programs_are_the_same():
    plain = programs("adam", origins=False)["step"]
    assert set(of_module(plain)) == {""}
    noted = programs("adam")["step"]
    assert plain.text(provenance=False) == noted.text(provenance=False)
