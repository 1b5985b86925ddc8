"""``gc-inventory``: every attribute of every device, as text or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from gctools import _commands
from gctools._attributes import attributes
from gctools._devices import list_devices
from gctools._output import clean, write
from gctools._processes import list_holds
from gctools.system import System


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: instead of those of the process.

    Returns:
        The exit status.
    """
    parser = _commands.parser("gc-inventory", "Show every attribute of every device.")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    return _commands.run(
        "gc-inventory", lambda: _print(as_json=options.json, verbose=options.verbose)
    )


def _print(*, as_json: bool, verbose: bool) -> int:
    system = System.here()
    devices = inventory(system)
    if as_json:
        write(json.dumps({"devices": devices}, indent=2))
    else:
        write("\n".join(_block(device) for device in devices) or "No devices.")
    _commands.say_notes(system, "gc-inventory", verbose=verbose)
    return 0


def inventory(system: System, prefer: int | None = None) -> list[dict[str, str]]:
    """Return the attributes of every device of a machine.

    Args:
        system: the machine.
        prefer: PID to name for a device that several processes hold.
    """
    devices = list_devices(system, utilisation=True)
    holds = list_holds(system, devices)
    return [attributes(device, holds, prefer) for device in devices]


def _block(device: dict[str, str]) -> str:
    return "\n".join(
        [f"Device {device['id']}:", *(f"  {key}: {clean(value)}" for key, value in device.items())]
    )


if __name__ == "__main__":
    sys.exit(main())
