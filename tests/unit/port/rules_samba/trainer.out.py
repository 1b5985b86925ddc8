"""A class whose method is a step, with weights that it begins with."""

from sambaflow import samba
import torch
from torch import nn


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, net, penalty):
        super().__init__()
        self.net = net
        self.penalty = penalty

    def forward(self, x, y):
        out = self.net(x)
        error = (out - y).abs()
        loss = error.mean() + self.penalty * out.square().mean()
        return error, loss


def traced(model, inputs, optimizer):
    """The outputs of the program of a model, which its first batch compiles and loads."""
    if getattr(model, "output_tensors", None) is None:
        pef = samba.session.compile(model, inputs, optimizer, name="trainer", loss_indices=[1])
        samba.utils.trace_graph(model, inputs, optimizer, pef=pef, loss_indices=[1])
    return model.output_tensors


def build(size):
    net = nn.Linear(4, size)
    samba.from_torch_model_(net)
    return net, torch.optim.RMSprop(net.parameters(), lr=0.05)


class Trainer:
    def __init__(self, penalty):
        self.penalty = penalty
        self.net, self.optimizer = build(3)
        self.training_model = samba.from_torch_model_(ModelWithLoss(self.net, self.penalty))

    def step(self, x, y):
        inputs = (
            samba.from_torch_tensor(x, name="x", batch_dim=0),
            samba.from_torch_tensor(y, name="y", batch_dim=0),
        )
        error, loss = map(
            samba.to_torch,
            samba.session.run(
                inputs,
                traced(self.training_model, inputs, self.optimizer),
                section_types=["fwd", "bckwd", "opt"],
                hyperparam_dict={"lr": self.optimizer.param_groups[0]["lr"]},
            ),
        )
        samba.session.to_cpu(self.training_model)
        return loss.item(), error.sum().item()


torch.manual_seed(0)
trainer = Trainer(0.1)
trainer.net.load_state_dict({"weight": torch.ones(3, 4), "bias": torch.zeros(3)})
for step in range(6):
    if step == 3:
        trainer.optimizer.param_groups[0]["lr"] = 0.001
    print(trainer.step(torch.randn(8, 4), torch.randn(8, 3)))
    if step == 20:
        torch.save(trainer.net, "whole.pt")
        trainer.net.load_state_dict(torch.load("other.pt"))
    print(trainer.net.weight.sum().item())
