"""Torch loads its distributed tensors for those who use them, and not for a capture."""

import os
import subprocess
import sys

_TRAINED = """
import sys, torch, poptorch

net = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, x):
        return poptorch.identity_loss(self.net(x).clamp(0, 1), "sum")

options = poptorch.Options().showCompilationProgressBar(False)
rule = torch.optim.SGD(net.parameters(), lr=0.1)
poptorch.trainingModel(WithLoss(), options, rule)(torch.ones(2, 4))
print("torch.distributed.tensor" in sys.modules)
"""
_USED = """
import torch
from torch import distributed
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
one = distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)]).requires_grad_()
total = (one @ distribute_tensor(torch.ones(2, 2), mesh, [Replicate()])).relu().sum()
total.backward()
print(type(total) is DTensor, type(one.grad) is DTensor, total.full_tensor().item())

asked = []
class Own(DTensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        asked.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs)

own = one.detach()
own.__class__ = Own
torch.neg(own)
print(asked)
"""


def test_a_capture_loads_none_and_they_work_afterwards():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _TRAINED + _USED],
        env={**os.environ, "ABELE_TARGET": "reference", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False", "True True 8.0", "['aten.neg.default']"]
