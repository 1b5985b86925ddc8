"""What torch.distributed has no equal for, or what cannot be read from the text."""

import horovod.torch as hvd
import popdist
import popdist.poptorch
import poptorch
import torch
from popdist.checkpoint import Checkpointer

opts = popdist.poptorch.Options(ipus_per_replica=popdist.getNumIpusPerReplica())  # ABP1609 blocked
model = torch.nn.Linear(4, 3)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # ABP1609 blocked
saved = Checkpointer("folder", model=model)  # ABP1609 blocked
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
unseeded = poptorch.DataLoader(opts, data, 8, shuffle=True)  # ABP1309 blocked
uneven = poptorch.DataLoader(opts, data, 8, drop_last=False)  # ABP1309 blocked
chosen = poptorch.DataLoader(opts, data, 8, sampler=range(8))  # ABP1309 blocked
popdist.execute_on_instances(func=print, instances={0})  # ABP1609 blocked
alone = poptorch.Options()
alone.Distributed.disable()  # ABP1008 blocked
alone.Distributed.configureProcessId(0, 2)  # ABP1008 blocked
print(popdist.getDeviceId())  # ABP1609 blocked
