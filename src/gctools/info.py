"""``gc-info``: the list of devices, and questions about one of them."""

import argparse
import sys
from collections.abc import Sequence

from gctools import _commands
from gctools._commands import UNKNOWN, clean, number, unit, write
from gctools._devices import Device, list_devices, partition
from gctools._processes import list_holds
from gctools.inventory import attributes
from gctools.system import System

_NOT_HERE = {
    "--tile-overview": "CPUs and GPUs have no tiles",
    "--tile-status": "CPUs and GPUs have no tiles",
    "--dump-mem": "the memory of a device belongs to the process that holds it",
    "--dump-regs": "registers of CPUs and GPUs are not open to programs",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 2 for what this machine cannot have or does not tell."""
    parser = _parser()
    options = parser.parse_args(arguments)
    for option, reason in _NOT_HERE.items():
        if getattr(options, option[2:].replace("-", "_")):
            parser.error(f"{option} is not here: {reason}.")
    return _commands.run("gc-info", lambda: _answer(parser, options))


def _parser() -> argparse.ArgumentParser:
    parser = _commands.parser("gc-info", "List the devices of this machine, or describe one.")
    parser.add_argument("-l", "--list-devices", action="store_true", help="list all devices")
    parser.add_argument(
        "--all-partitions", action="store_true", help="accepted; this machine is the only partition"
    )
    parser.add_argument(
        "-d", "--device-id", type=int, metavar="N", help="ask about this device (default 0)"
    )
    parser.add_argument("-i", "--device-info", action="store_true", help="show all attributes")
    parser.add_argument("--ipu-arch", action="store_true", help="show the device's architecture")
    parser.add_argument("--ipu-count", action="store_true", help="show the number of devices")
    parser.add_argument("--tile-clock-speed", action="store_true", help="show the clock now")
    for option in _NOT_HERE:
        parser.add_argument(option, action="store_true", help=argparse.SUPPRESS)
    return parser


def _answer(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    questions = ("list_devices", "device_info", "ipu_arch", "ipu_count", "tile_clock_speed")
    if not any(getattr(options, name) for name in questions):
        parser.print_help(sys.stderr)
        return 2
    system = System.here()
    devices = list_devices(system, utilisation=options.device_info)
    if options.list_devices:
        write(listing(devices))
    if options.ipu_count:
        write(str(len(devices) if options.device_id is None else len([_chosen(options, devices)])))
    status = 0
    if options.device_info:
        device = _chosen(options, devices)
        write("Device Info:")
        for key, value in attributes(device, list_holds(system, devices)).items():
            write(f"  {key}: {clean(value)}")
    if options.ipu_arch:
        status |= _say("architecture", _chosen(options, devices).architecture)
    if options.tile_clock_speed:
        clock = _chosen(options, devices).clock_mhz
        status |= _say("clock", None if clock is None else unit(clock, "MHz"))
    _commands.say_notes(system, "gc-info", verbose=options.verbose)
    return status


def _say(what: str, text: str | None) -> int:
    if text is None:
        print(f"gc-info: this machine does not tell the {what} of the device.", file=sys.stderr)
        return 2
    write(text)
    return 0


def _chosen(options: argparse.Namespace, devices: Sequence[Device]) -> Device:
    """Return the chosen device; end the command if it does not exist."""
    wanted = options.device_id or 0
    for device in devices:
        if device.id == wanted:
            return device
    if len(devices) > 1:
        there = f"Devices 0 to {len(devices) - 1} exist"
    else:
        there = "Only device 0 exists" if devices else "The system tells of none"
    print(
        f"gc-info: device {wanted} does not exist. {there}; gc-info -l lists them.", file=sys.stderr
    )
    raise SystemExit(2)


def listing(devices: Sequence[Device]) -> str:
    """Return one line for each device."""
    lines = ["Device listing:", "", f"Partition: {partition()} [active]"]
    for device in devices:
        facts = [f"target: [{device.kind}]", f"host: [{partition()}]"]
        facts += [f"{device.kind}#: [{device.index}]", f"name: [{device.name or UNKNOWN}]"]
        facts.append(f"cores: [{number(device.cores)}]")
        if device.bus is not None:
            facts.append(f"PCI: [{device.bus}]")
        lines.append(f"-+- Id: [{device.id}], {', '.join(facts)}")
    return "\n".join([*lines, *([] if devices else ["No devices."])])


if __name__ == "__main__":
    sys.exit(main())
