"""An evaluation that cuts its batches out of a tensor, of which the last one is shorter."""

import poptorch
import torch

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, i):
        loss = torch.nn.functional.mse_loss(self.model(x[i : i + 8]), y[i : i + 8])
        return loss


x = torch.randn(40, 4)
y = x.sum(1, keepdim=True)
model = torch.nn.Linear(4, 1)
inference_model = poptorch.inferenceModel(model, options=opts)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(2):
    for i in range(0, 32, 8):
        loss = training_model(torch.as_tensor(i))
    with torch.no_grad():
        answers = [None] * 3
        for i in range(0, len(x), 16):
            batch = x[i : i + 16]
            answers[i // 16] = (inference_model if len(batch) == 16 else model)(batch)
        print(loss.item(), torch.cat(answers).mean().item())
