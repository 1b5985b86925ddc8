"""An optimizer of the program's own, and a step without anything that changes."""

import torch


class Mine(torch.optim.SGD):
    pass


net = torch.nn.Linear(4, 3)
optimizer = Mine(net.parameters(), lr=0.1)  # ABP2409 blocked
x = torch.ones(8, 4)
for _ in range(3):
    optimizer.zero_grad()
    loss = net(x).mean()
    loss.backward()  # ABP2399 blocked
    optimizer.step()
