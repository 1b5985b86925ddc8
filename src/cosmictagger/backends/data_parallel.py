"""Plain PyTorch in several processes: torch's DistributedDataParallel around the network.

Each process computes the loss of its own images, and the gradients are averaged over processes, as
the published application does. Between processors they are added in the order of the processes,
so that a run that is started again ends with the same bits; between GPUs NCCL adds them.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from cosmictagger.errors import InstanceError
from cosmictagger.instances import Instances


class Shared(nn.Module):
    """A network whose backward averages gradients over all instances.

    Args:
        network: on its device; gets the first instance's weights and buffers.
        instances: more than one, connected.
        broadcast_buffers: before each pass, all get the first instance's statistics.
    """

    def __init__(self, network: nn.Module, instances: Instances, *, broadcast_buffers: bool):
        super().__init__()
        with self.losing_processes():
            self._parallel = DistributedDataParallel(
                network, forward_sync_buffers=broadcast_buffers, gradient_as_bucket_view=True
            )
        if distributed.get_backend() == distributed.Backend.GLOO:
            self._parallel.register_comm_hook(instances, _mean)

    def forward(self, image: torch.Tensor) -> Any:
        """See the network."""
        return self._parallel(image)

    @contextlib.contextmanager
    def losing_processes(self) -> Iterator[None]:
        """A block in which the loss of a process is an ``InstanceError``."""
        try:
            yield
        except distributed.DistError as error:
            raise InstanceError(_loss_message(error)) from error
        except RuntimeError as error:
            # Gloo's own errors have no type.
            if "gloo" not in str(error):
                raise
            raise InstanceError(_loss_message(error)) from error

    def adding(self, last: bool) -> contextlib.AbstractContextManager:
        """A block whose backward exchanges gradients only if it is the last one of an update."""
        return contextlib.nullcontext() if last else self._parallel.no_sync()


def _mean(
    instances: Instances, bucket: distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    values = bucket.buffer().div_(instances.count)
    instances.add_up(values)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(values)
    return done


def _loss_message(error: Exception) -> str:
    return (
        f"An update could not be made together: {str(error).splitlines()[0]}. Another instance has "
        "probably died; look at its output."
    )
