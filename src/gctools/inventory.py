"""Command ``gc-inventory``: every attribute of every device, as text or as JSON."""

import json
import sys
from collections.abc import Sequence

from gctools import _commands
from gctools._commands import UNKNOWN, clean, number, unit
from gctools._devices import Device, list_devices, partition
from gctools._processes import Hold, list_holds
from gctools.system import System


def attributes(device: Device, holds: Sequence[Hold], prefer: int | None = None) -> dict[str, str]:
    """Return every attribute of a device; values carry their unit (``1850MHz``).

    Keys of the original that say something about a CPU or GPU keep their name. What the system does
    not tell is ``N/A``; nobody's ``user process id`` is left out, since programs read it as a
    number.

    Args:
        device: what is described.
        holds: who holds devices; the longest holder is named.
        prefer: PID that is named rather than others.
    """
    texts = {
        "id": str(device.id),
        "target": device.kind,
        "partition": partition(),
        "name": device.name or UNKNOWN,
        "average board temp": unit(device.temperature_c, "C", 1),
        "average die temp": unit(device.temperature_c, "C", 1),
        "board ipu index": str(device.index),
        "board serial number": device.serial or UNKNOWN,
        "board type": device.board or device.name or UNKNOWN,
        "clock": unit(device.clock_mhz, "MHz"),
        "clock maximum": unit(device.clock_max_mhz, "MHz"),
        "cores": number(device.cores),
        "driver version": device.driver or UNKNOWN,
        "ipu architecture": device.architecture or UNKNOWN,
        "ipu power": unit(device.power_w, "W", 1),
        "ipu utilisation": unit(device.utilisation, "%", 2),
        "memory free": unit(device.memory_free, "B"),
        "memory total": unit(device.memory, "B"),
        "numa node": number(device.numa_node),
        "pci id": device.bus or UNKNOWN,
        "remote buffers": "1",
        "remote buffers supported": "1",
        "threads": number(device.threads),
        "threads usable": number(device.usable),
        "total board power": unit(device.power_w, "W", 1),
        "uuid": device.uuid or UNKNOWN,
    }
    return texts | _holder([hold for hold in holds if device.id in hold.devices], prefer)


def _holder(holds: Sequence[Hold], prefer: int | None) -> dict[str, str]:
    here = [hold for hold in holds if hold.elsewhere is None]
    if not here:
        return {}
    hold = max(here, key=lambda hold: (hold.pid == prefer, hold.seconds or 0.0))
    return {
        "user executable": hold.command,
        "user name": hold.user,
        "user process id": str(hold.pid),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gc-inventory``, by default with the process's arguments; return the exit status."""
    parser = _commands.parser("gc-inventory", "Show every attribute of every device.")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object")
    options = _commands.parse(parser, arguments)
    system = System.here()
    devices = inventory(system)
    if options.json:
        print(json.dumps({"devices": devices}, indent=2))
    else:
        print("\n".join(_block(device) for device in devices) or "No devices.")
    _commands.say_notes(system, "gc-inventory", verbose=options.verbose)
    return 0


def inventory(system: System, prefer: int | None = None) -> list[dict[str, str]]:
    """Return the attributes of every device; PID ``prefer`` is named among several holders."""
    devices = list_devices(system, utilisation=True)
    holds = list_holds(system, devices)
    return [attributes(device, holds, prefer) for device in devices]


def _block(device: dict[str, str]) -> str:
    return "\n".join(
        [f"Device {device['id']}:", *(f"  {key}: {clean(value)}" for key, value in device.items())]
    )


if __name__ == "__main__":
    sys.exit(main())
