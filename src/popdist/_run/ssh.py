"""The remote shell for other hosts: ssh, or the command in ``POPRUN_SSH``.

Any program that starts a command on another host, passes on its standard streams and ends with its
exit status can take the place of ssh: ``POPRUN_SSH="ssh -p 2222"``. A host can be reached without a
password, has the working folder, and has this Python with this package at the same path.
"""

import os
import shlex
import sys
from pathlib import Path

from popdist._run import shim

VARIABLE = "POPRUN_SSH"
SHIM = str(Path(shim.__file__).resolve())
_DEFAULT = "ssh"
_OPTIONS = (
    "-T",
    "-oBatchMode=yes",
    "-oConnectTimeout=15",
    "-oServerAliveInterval=10",
    "-oServerAliveCountMax=3",
)


def command(host: str) -> list[str]:
    """Return the ssh command that starts the shim on a host."""
    words = shlex.split(os.environ.get(VARIABLE) or _DEFAULT)
    options = _OPTIONS if Path(words[0]).name == "ssh" else ()
    script = shlex.join(["exec", sys.executable, "-I", "-S", SHIM, shim.REMOTE])
    return [*words, *options, host, shlex.join(["/bin/sh", "-c", script])]
