"""The connection of instances, as the wrappers of `poptorch` use it."""

import poptorch
from popdist._environment import Error
from poptorch import processes


class InstanceError(poptorch.Error, Error):
    """An error of the exchange between instances.

    Two bases, because it may come out of this package or out of a wrapper's call.
    """


def connect(index: int, count: int) -> None:
    """Connect as one of several instances, and have their errors raised as `popdist.Error`."""
    processes.raise_as(InstanceError)
    processes.join(index, count)
