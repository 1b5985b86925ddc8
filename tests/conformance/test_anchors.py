"""Anchored tensors of every target: what they show is what plain PyTorch computes."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import build
from abele.runtime.session import Anchor
from abele.step.config import OutputMode, StepConfig
from helpers.models import Dense
from helpers.runs import captured, rule_for, session_of

WATCHED = ("fc1.weight", "Gradient___fc1.weight", "UpdatedVar___fc1.weight", "Tanh:0")


def test_anchors_show_what_the_program_computed(target):
    model = Dense()
    x, wanted = torch.randn(8, 6), torch.randn(8, 3)
    config = StepConfig(device_iterations=2, output_mode=OutputMode.FINAL)
    rule = rule_for(model, variable=("lr",), momentum=0.0)
    anchors = [Anchor(name=name, tensor=name, mode=OutputMode.ALL) for name in WATCHED]
    programs = captured(model, [x[:4], wanted[:4]], config, rule, anchors=WATCHED).programs
    executable, _ = build(programs, config, target=target)
    session = session_of(executable, model, config, rule, anchors=anchors)
    outputs = session.step([x.to(session.device), wanted.to(session.device)])
    assert [tuple(output.shape) for output in outputs] == [(4, 3), ()]
    expected = {name: [] for name in WATCHED}
    for rows, goal in zip(x.split(4), wanted.split(4), strict=True):
        hidden = torch.tanh(model.fc1(rows))
        weight = model.fc1.weight
        (gradient,) = torch.autograd.grad(F.mse_loss(model.fc2(hidden), goal), [weight])
        expected["fc1.weight"].append(weight.detach().clone())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        F.mse_loss(model(rows, goal)[0], goal).backward()
        optimizer.step()
        optimizer.zero_grad()
        expected["Gradient___fc1.weight"].append(gradient)
        expected["UpdatedVar___fc1.weight"].append(weight.detach().clone())
        expected["Tanh:0"].append(hidden.detach())
    for name, values in expected.items():
        value = session.anchored(name)
        assert value is not None
        torch.testing.assert_close(value.cpu(), torch.cat(values), rtol=1e-5, atol=1e-6)
    # What an anchor shows must not be memory that the next step writes to.
    state_memory = {value.untyped_storage().data_ptr() for value in session.params.values()}
    for name in WATCHED:
        assert session._anchors is not None
        found_values = session._anchors.kept(name)
        assert found_values is not None
        kept = found_values[0]
        assert not state_memory & {value.untyped_storage().data_ptr() for value in kept}
