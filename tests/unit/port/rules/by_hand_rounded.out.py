"""An update that multiplies and rounds before it subtracts, with a rate that falls to nothing."""

from itertools import count

import poptorch
import torch
import torch.nn.functional as F

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, fc):
        super().__init__()
        self.fc = fc

    def forward(self, batch_x, batch_y):
        output = F.smooth_l1_loss(self.fc(batch_x), batch_y)
        return output


torch.manual_seed(0)
wanted = torch.randn(4, 1) * 5


def get_batch(size=32):
    powers = torch.randn(size).unsqueeze(1)
    x = torch.cat([powers**i for i in range(1, 5)], 1)
    return x, x.mm(wanted)


fc = torch.nn.Linear(4, 1)
rate = 0.1
optimizer = poptorch.optim.SGD(fc.parameters(), lr=rate, velocity_scaling=rate, use_combined_accum=True)
training_model = poptorch.trainingModel(
    ModelWithLoss(fc), options=opts, optimizer=optimizer
)

for index in count(1):
    batch_x, batch_y = get_batch()
    output = training_model(batch_x, batch_y)
    loss = output.item()
    print(index, repr(loss), [repr(each) for each in fc.weight.flatten().tolist()])
    if index == 12:
        break
    if index > 8:
        rate = 0.0
        optimizer.param_groups[0]["velocity_scaling"] = optimizer.param_groups[0]["lr"] = rate
        training_model.setOptimizer(optimizer)
    else:
        rate *= 0.7
        optimizer.param_groups[0]["velocity_scaling"] = optimizer.param_groups[0]["lr"] = rate
        training_model.setOptimizer(optimizer)
