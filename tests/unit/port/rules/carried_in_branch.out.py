"""A state that one branch carries, in a global name and in a loop, and a batch that is changed."""

import poptorch
import torch
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, state, words, following):
        if recurrent:
            state = state.detach()
            scores, state = self.model(words, state)
        else:
            scores, _ = self.model(words)
        words = (words + 1) % 9
        total = criterion(scores, following)
        for part, weight in zip((scores, self.model(words)[0]), (0.5, 0.25), strict=True):
            change = part.square().mean()
            total = total + weight * change
        return state, poptorch.identity_loss(total, reduction="none")


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, second):
        super().__init__()
        self.second = second

    def forward(self, words, state, following):
        scores, state = self.second(words, state.detach())
        loss = criterion(scores, following)
        return state, poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
recurrent = True


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.again, self.out = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9)

    def forward(self, words, state=0.0):
        state = torch.tanh(self.table(words) + self.again(torch.zeros(8) + state))
        return self.out(state), state


def train_in_a_loop(text):
    state = torch.zeros(4, 8)
    for words, following in zip(text, text[1:], strict=False):
        state, total = training_model(state, words, following)
        print(total.item())


def step(words, following):
    global state
    state, loss = training_model_2(words, state, following)
    return loss.item()


criterion = nn.CrossEntropyLoss()
text = torch.randint(0, 9, (21, 4))
model = Speaker()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
train_in_a_loop(text)
second = Speaker()
second_optimizer = poptorch.optim.SGD(second.parameters(), lr=0.5)
training_model_2 = poptorch.trainingModel(
    ModelWithLoss2(second), options=opts, optimizer=second_optimizer
)
state = torch.zeros(4, 8)
for index in range(20):
    print(step(text[index], text[index + 1]))
