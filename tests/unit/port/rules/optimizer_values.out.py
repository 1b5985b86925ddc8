"""Beside its rate, an optimizer gets other values while it trains."""

import poptorch
import torch

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        loss = self.model(x).square().mean()
        return poptorch.identity_loss(loss, reduction="none")


x = torch.randn(8, 4)
model = torch.nn.Linear(4, 1)
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(4):
    loss = training_model()
    if epoch == 1:
        for group in optimizer.param_groups:
            group["betas"] = (0.8, 0.99)
            group["eps"] = 1e-4
            group["weight_decay"] *= 2
        training_model.setOptimizer(optimizer)
    print(loss.item())
