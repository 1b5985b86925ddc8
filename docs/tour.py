"""The engine in one short run: capture a step, look at it, run it twice, compare.

    python docs/tour.py

Reads top to bottom; `src/abele/README.md` names the files in the same order.
"""

import torch
from torch import nn

import abele
from abele import passes
from abele.capture import capture

torch.manual_seed(0)

# 1. A module with its loss inside, an update rule, one example micro-batch.


class Model(nn.Module):
    """Two layers and a loss."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, y):
        """x: float32 [B, 4]; y: int64 [B]."""
        return nn.functional.cross_entropy(self.second(torch.tanh(self.first(x))), y)


model = Model()
names = tuple(name for name, _ in model.named_parameters())
values = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
rule = abele.UpdateRule(
    kind="sgd", groups=(abele.Group(params=names, values=values, variable=frozenset({"lr"})),)
)
batch = [torch.randn(16, 4), torch.randint(0, 2, (16,))]
config = abele.StepConfig(training=True)

# 2. Capture: forward, loss, backward and update as one program. Forward runs once, without data.

captured = capture(lambda inputs: [model(*inputs)], model, batch, config, rule)
program = captured.programs[0]
print(f"{len(program.graph.graph.nodes)} nodes as captured")

# 3. Passes: an ordered tuple of Program -> Program, each of which keeps every bit.

print(" -> ".join(each.__name__ for each in passes.PIPELINE))
program = passes.run(program)
print(program.text())

# 4. Build for the reference target, the oracle, and run five steps.

executable, record = abele.build(captured.programs, config, target=abele.get_target("reference"))
session = abele.Session(executable, config, dict(model.named_parameters()), {}, hyper=rule.hyper())
for _ in range(5):
    (loss,) = session.step(batch)

# 5. Plain PyTorch does the same, bit for bit.

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    expected = model(*batch)
    expected.backward()
    optimizer.step()
assert torch.equal(loss, expected.detach())
assert all(torch.equal(session.params[name], value) for name, value in model.named_parameters())
print(f"loss {loss:.6f} on {record.target}, bitwise equal to plain PyTorch after five steps")
