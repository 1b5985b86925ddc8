"""A function that puts rows into a batch, and pads them to the longest of that batch."""

import poptorch
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, words, labels):
        loss = nn.functional.mse_loss(self.model(words), labels)
        return loss


def together(rows):
    words, labels = zip(*rows)
    return pad_sequence(words, batch_first=True), torch.stack(labels)


torch.manual_seed(0)
rows = [(torch.randint(0, 9, (6,)), torch.rand(1)) for _ in range(32)]
loader = poptorch.DataLoader(opts, rows, batch_size=8, shuffle=True, collate_fn=together)
model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 1))
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for words, labels in loader:
    loss = training_model(words, labels)
    print(loss.item())
