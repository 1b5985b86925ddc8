"""An update that is written by hand."""

import torch

net = torch.nn.Linear(4, 3)
for x in torch.randn(8, 4, 4):
    net.zero_grad()
    loss = net(x).mean()
    loss.backward()
    for p in net.parameters():  # ABP2399 blocked
        p.data.add_(p.grad, alpha=-0.1)
