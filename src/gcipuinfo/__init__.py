"""The module ``gcipuinfo``: device attributes for scripts that measure power or temperature.

Devices are this machine's processor sockets and GPUs, under the names of attributes that the
original has for IPUs. ``gc-inventory`` prints the same. Importing it loads neither torch nor a
driver.
"""

import json
import os

from gctools.inventory import inventory
from gctools.system import System

__all__ = ["IpuPower", "gcipuinfo"]

IpuPower = "ipu power"
_UNKNOWN = "N/A"


class gcipuinfo:
    """The devices of this machine as dictionaries of texts, units included (``1850MHz``).

    They are read once, and again by ``updateData``, or at every question in update mode.
    """

    def __init__(self) -> None:
        self._system = System.here()
        self._updates = False
        self.updateData()

    def setUpdateMode(self, mode: bool) -> None:
        """Set whether every query reads the devices again; off by default."""
        self._updates = mode

    def updateData(self) -> None:
        """Read the devices again; takes about a tenth of a second."""
        # Programs look for themselves in "user process id", also where others share the device.
        self._devices = inventory(self._system, prefer=os.getpid())

    def getDevices(self) -> list[dict[str, str]]:
        """Return the attributes of all devices by name."""
        if self._updates:
            self.updateData()
        return [dict(device) for device in self._devices]

    def getDevicesAsJSON(self) -> str:
        """Return all devices as JSON, as ``gc-inventory -j`` prints them."""
        return json.dumps({"devices": self.getDevices()})

    def getNamedAttributeForDevice(self, device: int, name: str) -> str:
        """Return an attribute of a device; ``N/A`` if it does not have it.

        Raises:
            IndexError: There is no such device.
        """
        devices = self.getDevices()
        if not 0 <= device < len(devices):
            raise IndexError(f"Device {device} does not exist; this machine has {len(devices)}.")
        return devices[device].get(name, _UNKNOWN)

    def getNamedAttributeForAll(self, name: str) -> list[str]:
        """Return an attribute of every device, in order; ``N/A`` where missing."""
        return [device.get(name, _UNKNOWN) for device in self.getDevices()]
