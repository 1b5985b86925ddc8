"""What torch.distributed has no equal for, or what cannot be read from the text."""

import horovod.torch as hvd
import popdist
import popdist.poptorch
import poptorch
import torch
from popdist.checkpoint import Checkpointer

opts = popdist.poptorch.Options(ipus_per_replica=popdist.getNumIpusPerReplica())  # ABP1009 manual
model = torch.nn.Linear(4, 3)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # ABP1909 manual
saved = Checkpointer("folder", model=model)  # ABP1909 manual
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
unseeded = poptorch.DataLoader(opts, data, 8, shuffle=True)  # ABP1309 manual
uneven = poptorch.DataLoader(opts, data, 8, drop_last=False)  # ABP1309 manual
chosen = poptorch.DataLoader(opts, data, 8, sampler=range(8))  # ABP1309 manual
popdist.execute_on_instances(func=print, instances={0})  # ABP1909 manual
alone = poptorch.Options()  # ABP1909 manual
alone.Distributed.disable()  # ABP1008 manual
alone.Distributed.configureProcessId(0, 2)  # ABP1008 manual
print(popdist.getDeviceId())  # ABP1909 manual
