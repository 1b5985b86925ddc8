"""Updates that torch's optimizers do not make."""

import poptorch
from torch import nn

model = nn.Linear(4, 3)
poptorch.optim.LAMB(model.parameters(), lr=0.1)  # ABP1409 manual
poptorch.optim.AdamW(model.parameters(), lr=0.1, bias_correction=False)  # ABP1409 manual
poptorch.optim.RMSprop(model.parameters(), lr=0.1, use_tf_variant=True)  # ABP1409 manual
poptorch.optim.SGD(model.parameters(), lr=(0.1, False))  # ABP1409 manual


class Fit(nn.Module):
    def forward(self, x, y):
        return nn.functional.mse_loss(x, y)


optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)  # ABP1401 modified
training = poptorch.trainingModel(Fit(), poptorch.Options(), optimizer)  # ABP1101 modified
training.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.01))  # ABP1113 manual
