"""`Options.Distributed`: the number of processes and the number of this one.

The numbers come from the environment of MPI, or of torchrun, so that a plain `Options()` in such a
job is distributed. The data loader divides the data set by them.
"""

import os
from typing import Self

from poptorch._error import require
from poptorch.options import _table
from poptorch.options._container import OptionsDict

_TORCHS = ("WORLD_SIZE", "RANK")


class _DistributedOptions(OptionsDict):
    """Process count and process number, at first those of an MPI job, or else of torchrun.

    Differs from the original: RANK and WORLD_SIZE of torchrun count where MPI's are not set.

    A data loader divides its data by them. Wrapping a model for training connects the processes,
    which meet where MASTER_ADDR and MASTER_PORT say; poprun sets both.
    """

    _store = "Distributed"

    def __init__(self) -> None:
        super().__init__(**_table.defaults(self._store))
        torchs = "OMPI_COMM_WORLD_SIZE" not in os.environ and {*_TORCHS} <= os.environ.keys()
        self._place_by(*(_TORCHS if torchs else ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")))

    def disable(self) -> Self:
        """Act as the only process, whatever the environment says."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read the process count and number from the environment.

        Args:
            var_num_processes: Variable with the count; 1 if it is not set.
            var_process_id: Variable with the number; 0 if it is not set.
        """
        for name in (var_num_processes, var_process_id):
            require(isinstance(name, str), f"setEnvVarNames takes names of variables, not {name!r}")
        return self._place_by(var_num_processes, var_process_id)

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Set the process number and count.

        Args:
            process_id: From 0 to `num_processes` - 1.
            num_processes: 1 or more.

        Raises:
            AssertionError: Numbers out of range.
        """
        return self._place(process_id, num_processes)

    @property
    def processId(self) -> int:
        """Number of this process, from 0."""
        return self.distributed_process_id

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return self.num_distributed_processes

    # Apart from the setters, because a subclass may refuse those.

    def _place_by(self, var_num_processes: str, var_process_id: str) -> Self:
        return self._place(_number(var_process_id, "0"), _number(var_num_processes, "1"))

    def _place(self, process_id: int, num_processes: int) -> Self:
        values = {"distributed_process_id": process_id, "num_distributed_processes": num_processes}
        self._check(values, create=False)
        require(
            process_id < num_processes,
            f"Invalid process id {process_id} of {num_processes} processes: ids count from 0; "
            "the arguments are configureProcessId(process_id, num_processes)",
        )
        self._store_all(values)
        return self


def _number(name: str, otherwise: str) -> int:
    text = os.environ.get(name, otherwise)
    require(text.strip().isdecimal(), f"{name}={text!r} should be an integer, 0 or more")
    return int(text)
