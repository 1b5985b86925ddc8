"""Command ``gc-info``: the list of devices, and values of one device."""

import argparse
import sys
from collections.abc import Sequence

from gctools import _commands
from gctools._commands import UNKNOWN, clean, number, unit
from gctools._devices import Device, list_devices, partition
from gctools._processes import list_holds
from gctools.inventory import attributes
from gctools.system import System

_QUESTIONS = (
    ("-l", "--list-devices", "list all devices"),
    ("-i", "--device-info", "show all attributes"),
    ("--ipu-arch", "show the device's architecture"),
    ("--ipu-count", "show the number of devices"),
    ("--tile-clock-speed", "show the clock now"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gc-info``; the exit status is 2 if the device or value is not available."""
    parser = _commands.parser("gc-info", "List the devices of this machine, or describe one.")
    questions = [
        parser.add_argument(*names, action="store_true", help=text).dest
        for *names, text in _QUESTIONS
    ]
    parser.add_argument(
        "--all-partitions", action="store_true", help="accepted; this machine is the only partition"
    )
    parser.add_argument(
        "-d", "--device-id", type=int, default=0, metavar="N", help="ask about this device"
    )
    options = _commands.parse(parser, arguments)
    if not any(getattr(options, name) for name in questions):
        parser.print_help(sys.stderr)
        return 2
    system = System.here()
    devices = list_devices(system, utilisation=options.device_info)
    try:
        print("\n".join(_answers(options, system, devices)))
    except LookupError as problem:
        print(f"gc-info: {problem.args[0]}", file=sys.stderr)
        return 2
    _commands.say_notes(system, "gc-info", verbose=options.verbose)
    return 0


def _answers(options: argparse.Namespace, system: System, devices: list[Device]) -> list[str]:
    """Return the output lines of ``gc-info`` for the requested values.

    Raises:
        LookupError: the device does not exist, or the machine does not tell a value.
    """
    lines = listing(devices) if options.list_devices else []
    if options.ipu_count:
        lines.append(str(len(devices)))
    if options.device_info or options.ipu_arch or options.tile_clock_speed:
        device = _chosen(options.device_id, devices)
        if options.device_info:
            values = attributes(device, list_holds(system, devices))
            lines += ["Device Info:", *(f"  {key}: {clean(text)}" for key, text in values.items())]
        if options.ipu_arch:
            lines.append(_known("architecture", device.architecture or UNKNOWN))
        if options.tile_clock_speed:
            lines.append(_known("clock", unit(device.clock_mhz, "MHz")))
    return lines


def _known(what: str, text: str) -> str:
    if text == UNKNOWN:
        raise LookupError(f"this machine does not tell the {what} of the device.")
    return text


def _chosen(wanted: int, devices: Sequence[Device]) -> Device:
    if not 0 <= wanted < len(devices):
        raise LookupError(
            f"device {wanted} does not exist. There are {len(devices)}, counted from 0; gc-info -l "
            "lists them."
        )
    return devices[wanted]


def listing(devices: Sequence[Device]) -> list[str]:
    """Return the list of devices: a heading and a line for each device."""
    lines = ["Device listing:", "", f"Partition: {partition()} [active]"]
    for device in devices:
        facts = [f"target: [{device.kind}]", f"host: [{partition()}]"]
        facts += [f"{device.kind}#: [{device.index}]", f"name: [{device.name or UNKNOWN}]"]
        facts.append(f"cores: [{number(device.cores)}]")
        if device.bus is not None:
            facts.append(f"PCI: [{device.bus}]")
        lines.append(f"-+- Id: [{device.id}], {', '.join(facts)}")
    return lines if devices else [*lines, "No devices."]


if __name__ == "__main__":
    sys.exit(main())
