"""A batch that is a dictionary, and several processes."""

import torch

torch.distributed.init_process_group("gloo")  # ABP2001 blocked
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))  # ABP2001 blocked
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in [{"x": torch.ones(8, 4)}]:
    optimizer.zero_grad()
    loss = net(batch["x"]).mean()  # ABP2399 blocked
    loss.backward()
    optimizer.step()
