"""A network trained by one optimizer after the other; its body then serves a second head."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
rows, classes = torch.randn(32, 4), torch.randint(0, 3, (32,))
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(rows, classes), batch_size=8
)
body, head, second = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

adam = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
for x, y in loader:
    adam.zero_grad()
    loss = F.cross_entropy(head(body(x).relu()), y)
    loss.backward()
    adam.step()
    print(loss.item())

sgd = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
for x, y in loader:
    sgd.zero_grad()
    loss = F.cross_entropy(head(body(x).relu()), y)
    loss.backward()
    sgd.step()
    print(loss.item())

for parameter in body.parameters():
    parameter.requires_grad_(False)
transfer = torch.optim.SGD(second.parameters(), lr=0.01)
for x, y in loader:
    transfer.zero_grad()
    loss = F.cross_entropy(second(body(x).relu()), y)
    loss.backward()
    transfer.step()
    print(loss.item())
