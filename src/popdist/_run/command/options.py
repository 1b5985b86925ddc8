"""The options of poprun: one table, from which the parser, its help and the guide's table come."""

from __future__ import annotations

import dataclasses
from typing import Any

YES, NO = ("yes", "true", "1"), ("no", "false", "0")


@dataclasses.dataclass(frozen=True)
class Option:
    """A row.

    Args:
        name: Without dashes.
        kind: text, count (1 or more), number (0 or more), boolean or flag.
        default: What holds where it is not given; None means that poprun decides.
        group: Heading in the help.
        help: A sentence without its full stop.
        metavar: How the help writes the value.
        short: One-letter name.
        repeats: Whether it may be given several times; the values become a list.
    """

    name: str
    kind: str
    default: Any
    group: str
    help: str
    metavar: str = ""
    short: str = ""
    repeats: bool = False

    @property
    def key(self) -> str:
        """Its name as an attribute of the parsed options."""
        return self.name.replace("-", "_")


RUN, HOSTS, PROGRAM = "instances and replicas", "hosts", "what instances get"
OUTPUT, FAILURE, CONFIG = "output", "failures", "configuration files"
NO_EFFECT = "accepted, without effect here (there is no IPU partition)"

OPTIONS = (
    Option("num-instances", "count", None, RUN,
           "processes to start; divided evenly over the hosts. Default: 1, or under Slurm and MPI "
           "what these started", "N"),
    Option("num-replicas", "count", None, RUN,
           "copies of the model in all instances together; a multiple of the instances. "
           "Default: one per instance", "N"),
    Option("ipus-per-replica", "count", 1, RUN, "pipeline stages or IPUs of one copy", "N"),
    Option("num-ilds", "count", 1, RUN, "IPU-link domains; shown in the topology only", "N"),
    Option("host", "text", None, HOSTS,
           "hosts with commas in between; n[0-2,4] stands for n0, n1, n2, n4. "
           "Default: this machine", "LIST", short="H"),
    Option("hostfile", "text", None, HOSTS, "file with one host per line, instead of --host",
           "FILE"),
    Option("host-subnet", "text", None, HOSTS,
           "network that instances talk over, such as 10.1.0.0/16", "CIDR"),
    Option("master-addr", "text", None, HOSTS,
           "name or address of this machine for the other hosts", "ADDRESS"),
    Option("master-port", "number", 0, HOSTS,
           "port where instances find each other; 0: a free one", "PORT"),
    Option("executable-cache-path", "text", None, PROGRAM,
           "folder of compiled programs, as POPTORCH_CACHE_DIR", "DIR"),
    Option("mpi-global-args", "text", (), PROGRAM,
           "arguments as for mpirun; -x, --tag-output and --mca btl_tcp_if_include count, the "
           "rest is ignored", '"ARGS"', repeats=True),
    Option("mpi-local-args", "text", (), PROGRAM,
           'environment of the instances: "-x NAME=value" sets, "-x NAME" also takes it along to '
           "other hosts", '"ARGS"', repeats=True),
    Option("instance-mpi-local-args", "text", (), PROGRAM, "the same for one instance",
           'IDX:"ARGS"', repeats=True),
    Option("numa-aware", "boolean", False, PROGRAM,
           "bind each instance to its own cores, those of one NUMA node where possible"),
    Option("offline-mode", "boolean", False, PROGRAM,
           "compile only: PopTorch programs use the offline target"),
    Option("verbose", "flag", 0, OUTPUT, "say what is done; -vv says everything", short="v"),
    Option("vv", "flag", False, OUTPUT, "the same as -vv"),
    Option("tag-output", "boolean", True, OUTPUT,
           "begin each line with [1,INSTANCE]<stdout>: or <stderr>:"),
    Option("only-output-from-instance", "number", None, OUTPUT, "hide the output of the others",
           "I"),
    Option("print-topology", "boolean", False, OUTPUT,
           "print which instance runs where; without a program that is all"),
    Option("max-restarts", "number", 0, FAILURE,
           "start all instances anew, up to N times, after one of them failed", "N"),
    Option("grace-seconds", "number", 10, FAILURE,
           "time that instances have to end by themselves before they are killed", "S"),
    Option("import-config", "text", None, CONFIG,
           "take options from a file; those of the command line win", "FILE"),
    Option("export-config", "text", None, CONFIG,
           "write the options to a file; without a program that is all", "FILE"),
    Option("overwrite-config", "boolean", False, CONFIG,
           "whether --export-config may replace a file"),
    Option("allow-run-as-root", "flag", False, NO_EFFECT, "it is always allowed"),
    Option("vipu-server-host", "text", None, NO_EFFECT, "", "H"),
    Option("vipu-server-port", "number", 8090, NO_EFFECT, "", "P"),
    Option("vipu-server-timeout", "number", 120, NO_EFFECT, "", "S"),
    Option("vipu-partition", "text", None, NO_EFFECT, "", "NAME"),
    Option("vipu-allocation", "text", None, NO_EFFECT, "", "NAME"),
    Option("vipu-cluster", "text", None, NO_EFFECT, "", "NAME"),
    Option("vipu-partition-attempts", "number", 1, NO_EFFECT, "", "N"),
    Option("update-partition", "boolean", False, NO_EFFECT, ""),
    Option("reset-partition", "boolean", None, NO_EFFECT, ""),
    Option("remove-partition", "boolean", True, NO_EFFECT, ""),
    Option("sync-type", "text", None, NO_EFFECT, "", "T"),
)  # fmt: skip
BY_NAME = {option.name: option for option in OPTIONS}
BY_SHORT = {option.short: option for option in OPTIONS if option.short}
