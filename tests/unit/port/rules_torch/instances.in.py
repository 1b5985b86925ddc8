"""Several instances, one of which writes the log."""
# poprun --num-instances 2 --num-replicas 2 python instances.py  # ABP1606 match

import popdist
import popdist.poptorch
import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset

if popdist.isPopdistEnvSet():  # ABP1602 modified
    popdist.init()  # ABP1601 modified
    opts = popdist.poptorch.Options(ipus_per_replica=1)  # ABP1001 modified
else:
    opts = poptorch.Options()  # ABP1001 modified
opts.randomSeed(42)  # ABP1002 modified
opts.outputMode(poptorch.OutputMode.All)


class Fit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


def log(*values):
    if popdist.getInstanceIndex() == 0:  # ABP1602 modified
        print(*values)


data = TensorDataset(torch.randn(102, 4), torch.randn(102, 3))
loader = poptorch.DataLoader(opts, data, 4, True, num_workers=0, drop_last=True)  # ABP1604 modified, ABP1301 modified
model = Fit()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
training = poptorch.trainingModel(model, opts, optimizer)  # ABP1603 modified, ABP1101 modified
for epoch in range(2):
    for x, y in loader:
        loss = training(x, y)  # ABP1102 modified
        log(loss.item())
    share = len(loader) * 4 * popdist.getNumTotalReplicas()  # ABP1602 modified
    log(epoch, share, training.model.layer.weight.sum().item())  # ABP1111 modified
popdist.execute_on_instances({0}, torch.save, training.state_dict(), "model.pt")  # ABP1605 modified, ABP1603 modified
torch.save(model.state_dict(), f"model-{popdist.getInstanceIndex()}.pt")
first = popdist.execute_on_instances({0, 1}, len, data)
log(first, sorted(torch.load("model.pt")))
