"""Moving a program to a device; "meta" stands in for a GPU."""

import torch

from abele import StepConfig, passes
from abele.capture import capture
from abele.passes.of_lowerings.gpu import on_device
from abele.program import Program

META = torch.device("meta")


class Shifted(torch.nn.Module):
    """Holds a constant and makes a tensor in forward."""

    def __init__(self):
        super().__init__()
        self.layer, self.constant = torch.nn.Linear(4, 3), torch.ones(3)

    def forward(self, x):
        return self.layer(x) * self.constant + torch.arange(3)


def moved() -> Program:
    model = Shifted()
    config = StepConfig(training=False)
    captured = capture(lambda inputs: [model(*inputs)], model, [torch.randn(2, 4)], config)
    return on_device(passes.run(captured.programs[0]), META).verify()


def test_every_value_is_on_the_device():
    nodes = [node for node in moved().graph.graph.nodes if node.op != "output"]
    assert {node.meta["val"].device for node in nodes} == {META}


def test_tensors_made_by_the_program_are_made_there():
    devices = [node.kwargs["device"] for node in moved().graph.graph.nodes if node.kwargs]
    assert devices == [META]


def test_constants_move_too():
    assert {constant.device for _, constant in moved().graph.named_buffers()} == {META}
