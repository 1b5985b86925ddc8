"""A state that goes from one batch to the next."""

import poptorch
import torch
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, words, state, following):
        scores, state = self.model(words, state)
        loss = criterion(scores.flatten(0, 1), following.flatten())
        return state, poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.again, self.out = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9)

    def forward(self, words, state):
        said, memory = [], state[0]
        for word in self.table(words):
            memory = torch.tanh(word + self.again(memory))
            said.append(memory)
        return self.out(torch.stack(said)), (memory, state[1] + 1)


model = Speaker()
criterion = nn.CrossEntropyLoss()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
text = torch.randint(0, 9, (101, 4))
state = (torch.zeros(4, 8), torch.zeros(1))
for start in range(0, 100, 5):
    words, following = text[start : start + 5], text[start + 1 : start + 6]
    state = tuple(part.detach() for part in state)
    state, loss = training_model(words, state, following)
    print(loss.item())
