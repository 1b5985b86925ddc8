"""A weight of the loss that changes from epoch to epoch goes along as a tensor without rows."""

from sambaflow import samba
import torch
from torch.utils.data import DataLoader, TensorDataset


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, weight, y):
        out = self.model(x)
        loss = weight * (out - y).square().mean() + (1.0 - weight) * out.abs().mean()
        return loss


def traced(model, inputs, optimizer):
    """The outputs of the program of a model, which its first batch compiles and loads."""
    if getattr(model, "output_tensors", None) is None:
        pef = samba.session.compile(model, inputs, optimizer, name="numbers")
        samba.utils.trace_graph(model, inputs, optimizer, pef=pef)
    return model.output_tensors


torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 2)), batch_size=8)
model = torch.nn.Linear(4, 2)
training_model = samba.from_torch_model_(ModelWithLoss(model))
optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    weight = min(1.0, 0.25 + 0.5 * epoch)
    for x, y in loader:
        inputs = (
            samba.from_torch_tensor(x, name="x", batch_dim=0),
            samba.from_torch_tensor(torch.as_tensor(weight), name="weight"),
            samba.from_torch_tensor(y, name="y", batch_dim=0),
        )
        (loss,) = map(
            samba.to_torch,
            samba.session.run(
                inputs,
                traced(training_model, inputs, optimizer),
                section_types=["fwd", "bckwd", "opt"],
            ),
        )
        print(loss.item())
    samba.session.to_cpu(training_model)
