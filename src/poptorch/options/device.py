"""Root options about the device and its compiler: which one, when, and what it should record.

`Options` inherits these setters. Most only mattered on the original's hardware.
"""

import logging
import os
from typing import Any, Self

from poptorch._error import require
from poptorch.enums import ConnectionType, SyncPattern
from poptorch.options._container import OptionsDict
from poptorch.options.popart import _PopartOptions

SIMULATORS = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")

_logger = logging.getLogger("poptorch::python")


class DeviceOptions(OptionsDict):
    """The part of `Options` that chooses and instructs the device."""

    @property
    def _Popart(self) -> _PopartOptions:
        """Settings addressed to the original's compiler by name."""
        return self._namespaces["_Popart"]

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> Self:
        """Advise on scratch memory.

        Differs from the original: no effect; what an operator needs is allocated.

        Args:
            available_memory_proportion: Fractions from 0 to 1 by "IPU0", "IPU1", ...

        Raises:
            AssertionError: Another key, or a fraction outside of 0 to 1.
        """
        for name, share in available_memory_proportion.items():
            index = name.removeprefix("IPU") if isinstance(name, str) else ""
            require(
                name == f"IPU{index}" and index.isdigit(),
                f'Invalid key {name!r}: keys are "IPU" and a number, such as "IPU0"',
            )
            require(
                isinstance(share, float | int) and 0 <= share <= 1,
                f"Invalid proportion {share!r} for {name}: it must lie between 0 and 1",
            )
        return self._with(available_memory_proportion=dict(available_memory_proportion))

    def useIpuModel(self, use_model: bool) -> Self:
        """Choose the original's simulator, whose device counts need no power of two.

        Differs from the original: nothing is simulated; the same program runs either way.

        Args:
            use_model: Takes precedence over POPTORCH_IPU_MODEL and POPTORCH_SMALL_IPU_MODEL.
        """
        return self._create(use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Self:
        """Pick a device of the original by number.

        Differs from the original: no effect; there is no IPU to pick.

        Args:
            ipu_id: Its number.
        """
        return self._create(ipu_id=ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile without running: sets the connection type to Never.

        Differs from the original: compiles for the present target, not for absent hardware.

        Args:
            ipu_version: Generation of the original hardware; stored only.
        """
        return self._create(ipu_version=ipu_version).connectionType(ConnectionType.Never)

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Choose when a wrapper takes a device.

        Differs from the original: there is always a device to take, so that OnDemand only delays
        sending the weights.

        Args:
            connection_type: Never makes wrappers that only compile.

        Raises:
            AssertionError: Not a ConnectionType.
        """
        require_member("connectionType", connection_type, ConnectionType)
        return self._with(connection_type=connection_type)

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Choose how devices wait for each other.

        Differs from the original: no effect; there is one device.

        Args:
            sync_pattern: The pattern.

        Raises:
            AssertionError: Not a SyncPattern.
        """
        require_member("syncPattern", sync_pattern, SyncPattern)
        return self._with(sync_pattern=sync_pattern)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Allow models whose blocks and replicas need no power of two of devices.

        Args:
            auto_round_num_ipus: Whether to round up, with a warning; otherwise such a model is an
                error when it is compiled.
        """
        return self._with(auto_round_num_ipus=auto_round_num_ipus)

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Keep compiled executables in a directory.

        Args:
            path: The directory, made on demand; None turns caching off.
        """
        require(
            path is None or isinstance(path, str | os.PathLike),
            f"enableExecutableCaching takes a path or None, not {path!r}",
        )
        self._Popart.set("enableEngineCaching", path is not None)
        if path is None:
            self._Popart.options.pop("cachePath", None)
        else:
            self._Popart.set("cachePath", os.fspath(path))
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Write a report of the compiled model and a trace of its first calls.

        Differs from the original: text and Chrome traces, not its binary profile.

        Args:
            profile_dir: Where each model gets a folder; None means the current directory.
        """
        require(
            profile_dir is None or isinstance(profile_dir, str | os.PathLike),
            f"enableProfiling takes a path or None, not {profile_dir!r}",
        )
        settings = {
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": "." if profile_dir is None else os.fspath(profile_dir),
            "autoReport.all": "true",
        }
        environment = os.environ.get("POPLAR_ENGINE_OPTIONS", "")
        for name in settings:
            if name in environment:
                _logger.warning("enableProfiling: POPLAR_ENGINE_OPTIONS overrides %s", name)
        present = self._Popart.options.get("engineOptions", {})
        self._Popart.setEngineOptions({**present, **settings})
        return self

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Let `cycleCount()` tell how long a call took.

        Differs from the original: a cycle is a nanosecond.

        Args:
            log_cycle_count: Whether it may be asked.
        """
        self._Popart.set("instrumentWithHardwareCycleCounter", log_cycle_count)
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Ask for normalisations that compute the variance stably.

        Differs from the original: no effect; they always do.

        Args:
            enabled: Stored only.
        """
        self._Popart.set("enableStableNorm", enabled)
        return self

    def enableSyntheticData(self, enabled: bool) -> Self:
        """Use random normal data made on the device in place of the inputs.

        Args:
            enabled: Anything true turns it on; integer inputs become zeros. For zeros everywhere
                (1) or uniform numbers (3) set ``syntheticDataMode`` of ``_Popart``.
        """
        self._Popart.set("syntheticDataMode", 2 if enabled else 0)
        return self

    def updatableNamedBuffers(self, buffers: list[str]) -> Self:
        """Name the buffers that `copyNamedBuffersToDevice` sends.

        Args:
            buffers: Their names; one that the model lacks is an error when they are sent.
        """
        self._Popart.set("updatableNamedBuffers", buffers)
        return self

    def _uses_ipu_model(self) -> bool:
        if self.exists("use_model"):
            return self.use_model
        return simulator_chosen()

    def _with(self, **values: Any) -> Self:
        self.set(**values)
        return self

    def _create(self, **values: Any) -> Self:
        self.createOrSet(**values)
        return self


def simulator_chosen() -> bool:
    """Tell whether the environment asks for the original's simulator."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in SIMULATORS)


def require_member(setter: str, value: Any, enumeration: type) -> None:
    """Raise AssertionError unless `value` belongs to an enumeration."""
    require(
        isinstance(value, enumeration),
        f"{setter} takes a poptorch.{enumeration.__name__}, not {value!r}",
    )
