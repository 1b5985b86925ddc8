"""An update that multiplies and rounds before it subtracts, with a rate that falls to nothing."""

from itertools import count

import torch
import torch.nn.functional as F

torch.manual_seed(0)
wanted = torch.randn(4, 1) * 5


def get_batch(size=32):
    powers = torch.randn(size).unsqueeze(1)
    x = torch.cat([powers**i for i in range(1, 5)], 1)
    return x, x.mm(wanted)


fc = torch.nn.Linear(4, 1)
rate = 0.1

for index in count(1):
    batch_x, batch_y = get_batch()
    fc.zero_grad()
    output = F.smooth_l1_loss(fc(batch_x), batch_y)
    loss = output.item()
    output.backward()
    for param in fc.parameters():  # ABP403 modified
        param.data.add_(-rate * param.grad)
    print(index, repr(loss), [repr(each) for each in fc.weight.flatten().tolist()])
    if index == 12:
        break
    if index > 8:
        rate = 0.0  # ABP412 modified
    else:
        rate *= 0.7  # ABP412 modified
