"""A convolutional network with a schedule, a limit of gradients, and evaluation in the loop."""

from sambaflow import samba
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pictures, labels):
        loss = nn.functional.cross_entropy(self.model(pictures), labels)
        return loss


def traced(model, inputs, optimizer):
    """The outputs of the program of a model, which its first batch compiles and loads."""
    if getattr(model, "output_tensors", None) is None:
        pef = samba.session.compile(model, inputs, optimizer, name="cnn")
        samba.utils.trace_graph(model, inputs, optimizer, pef=pef)
    return model.output_tensors


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * 4 * 4, 3)),
    )


torch.manual_seed(1)
x = torch.randn(48, 1, 8, 8)
data = TensorDataset(x, x.mean((1, 2, 3)).sign().long() + 1)
options = {"batch_size": 8}
model = network()
training_model = samba.from_torch_model_(ModelWithLoss(model))
optimizer = samba.optim.AdamW(model.parameters(), lr=0.02, betas=(0.9, 0.99), weight_decay=0, max_grad_norm=0.5)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
for epoch in range(2):
    model.train()
    for step, (pictures, labels) in enumerate(DataLoader(data, drop_last=True, **options)):
        inputs = (
            samba.from_torch_tensor(pictures, name="pictures", batch_dim=0),
            samba.from_torch_tensor(labels, name="labels", batch_dim=0),
        )
        (loss,) = map(
            samba.to_torch,
            samba.session.run(
                inputs,
                traced(training_model, inputs, optimizer),
                section_types=["fwd", "bckwd", "opt"],
                hyperparam_dict={"lr": optimizer.param_groups[0]["lr"]},
            ),
        )
        samba.session.to_cpu(training_model, optimizer)
        schedule.step()
        if step % 3 == 0:
            print(step, loss.item(), schedule.get_last_lr())
            model.eval()
            print(model(x).sum().item())
            model.train()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "end.pt")
kept = torch.load("end.pt", weights_only=True)
print(kept["model"]["0.weight"].sum().item(), kept["optimizer"]["state"][0]["exp_avg"].sum().item())
