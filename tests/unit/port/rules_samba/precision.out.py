"""Mixed precision, a limit of gradients, and tensors that are made or moved on a device."""

from sambaflow import samba
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, rows, labels):
        scores = self.model(rows)
        loss = criterion(scores, labels)
        return scores, loss


def traced(model, inputs, optimizer):
    """The outputs of the program of a model, which its first batch compiles and loads."""
    if getattr(model, "output_tensors", None) is None:
        pef = samba.session.compile(model, inputs, optimizer, name="precision", loss_indices=[1])
        samba.utils.trace_graph(model, inputs, optimizer, pef=pef, loss_indices=[1])
    return model.output_tensors


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(2)
x = torch.randn(40, 6)
data = TensorDataset(x, x[:, :3].argmax(1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
shares = torch.tensor([1.0, 2.0, 0.5])
scale = torch.linspace(0.5, 2.999, 6, dtype=torch.bfloat16)
criterion = nn.CrossEntropyLoss(weight=shares)
training_model = samba.from_torch_model_(ModelWithLoss(model))
optimizer = samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, max_grad_norm=0.5)
for epoch in range(3):
    for rows, labels in loader:
        rows = rows * scale.to(torch.int64)
        inputs = (
            samba.from_torch_tensor(rows, name="rows", batch_dim=0),
            samba.from_torch_tensor(labels, name="labels", batch_dim=0),
        )
        scores, loss = map(
            samba.to_torch,
            samba.session.run(
                inputs,
                traced(training_model, inputs, optimizer),
                section_types=["fwd", "bckwd", "opt"],
            ),
        )
        samba.session.to_cpu(training_model)
        print(loss.item(), scores.detach().argmax(1).sum().item())
    print(model(x).sum().item())
