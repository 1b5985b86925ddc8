"""A state that goes from one batch to the next."""

import torch
from torch import nn

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
text = torch.randint(0, 9, (101, 4))
state = (torch.zeros(4, 8), torch.zeros(1))
for start in range(0, 100, 5):
    words, following = text[start : start + 5], text[start + 1 : start + 6]
    state = tuple(part.detach() for part in state)
    optimizer.zero_grad()
    scores, state = model(words, state)  # ABP312 manual
    loss = criterion(scores.flatten(0, 1), following.flatten())
    loss.backward()
    optimizer.step()
    print(loss.item())
