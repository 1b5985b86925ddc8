"""Real ssh, Open MPI and Slurm on this machine, for the time of a test and out of a folder.

Every daemon runs in the foreground as a child of the tests, on free ports of the loopback, with its
configuration and its keys in a temporary folder: nothing of the system's own is read or changed,
and everything is gone afterwards, also when a test fails or the tests are killed.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from helpers.instances import free_port

OTHER_HOSTS = ("127.0.0.2", "127.0.0.3")  # this machine, by addresses that poprun does not know
_PATIENCE_S = 60.0

SLURM = """\
ClusterName=abele
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
SrunPortRange={first}-{last}
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=10 State=UP
"""
SSHD = """\
Port {port}
ListenAddress {first}
ListenAddress {second}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
"""


def missing(*programs: str) -> str:
    """Why tests cannot run; empty if they can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    absent = [name for name in programs if not shutil.which(name, path=path)]
    if absent:
        return f"{', '.join(absent)} not installed; scripts/test --real installs them"
    return "" if os.getuid() == 0 else "daemons of a cluster need root"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder for configuration and keys."""
    with tempfile.TemporaryDirectory(prefix="abele-real-") as path:
        os.chmod(path, 0o711)  # munge wants clients to reach its socket
        yield Path(path)


@contextlib.contextmanager
def daemons(log: Path) -> Iterator[Callable[[Sequence[str]], None]]:
    """Starts daemons that stay in the foreground; ends the latest first, whatever happens."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: Sequence[str]) -> None:
        name, *arguments = command
        program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
        with open(log, "ab") as file:
            # They go with the tests, even if these are killed.
            tied = ["setpriv", "--pdeathsig", "TERM", str(program), *arguments]
            started.append(
                subprocess.Popen(
                    tied, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=log.parent
                )
            )

    try:
        yield start
    finally:
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def ssh() -> Iterator[str]:
    """An sshd; yields the command that reaches it without a password, for ``POPRUN_SSH``."""
    made = not os.path.exists("/run/sshd")
    with folder() as path, daemons(path / "sshd.log") as start:
        for name in ("host_key", "key"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path / name])
        port = free_port()
        hosts = [f"[{host}]:{port}" for host in OTHER_HOSTS]
        public = (path / "host_key.pub").read_text()
        (path / "known").write_text("".join(f"{host} {public}" for host in hosts))
        first, second = OTHER_HOSTS
        config = SSHD.format(port=port, first=first, second=second, folder=path)
        (path / "sshd_config").write_text(config)
        if made:
            os.mkdir("/run/sshd", 0o755)  # sshd insists on it
        try:
            start(["sshd", "-D", "-e", "-f", str(path / "sshd_config")])
            wait_for(lambda: _answers(first, port), path)
            yield (
                f"ssh -F none -p {port} -i {path}/key -o IdentitiesOnly=yes "
                f"-o UserKnownHostsFile={path}/known -o StrictHostKeyChecking=yes"
            )
        finally:
            if made:
                os.rmdir("/run/sshd")


@contextlib.contextmanager
def slurm() -> Iterator[dict[str, str]]:
    """One controller and one node; yields the variables that Slurm's commands need."""
    with folder() as path, daemons(path / "daemons.log") as start:
        for name in ("state", "spool"):
            (path / name).mkdir()
        (path / "munge.key").write_bytes(os.urandom(1024))
        (path / "munge.key").chmod(0o600)
        config = SLURM.format(
            host=socket.gethostname().partition(".")[0],
            folder=path,
            user="root",
            controller=free_port(),
            node=free_port(),
            first=61000,
            last=61999,
        )
        (path / "slurm.conf").write_text(config)
        (path / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        files = [f"--{n}={path}/munge.{n.removesuffix('-file')}" for n in ("key-file", "socket")]
        more = [f"--{n}={path}/munge.{n[:3]}" for n in ("pid-file", "seed-file", "log-file")]
        start(["munged", "--foreground", "--force", *files, *more])
        wait_for(lambda: (path / "munge.socket").exists(), path)
        variables = {"SLURM_CONF": str(path / "slurm.conf")}
        start(["slurmctld", "-D", "-f", str(path / "slurm.conf")])
        start(["slurmd", "-D", "-f", str(path / "slurm.conf")])
        wait_for(lambda: "idle" in _nodes(variables), path)
        try:
            yield variables
        finally:
            run(["scancel", "--user=root"], check=False, **variables)


def run(
    command: Sequence[object], check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command with more variables, and shows what it printed if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def wait_for(condition: Callable[[], bool], path: Path) -> None:
    """Waits until something is there; shows the daemons' logs if it does not come."""
    until = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            logs = [f"{log.name}:\n{log.read_text()}" for log in path.glob("*.log")]
            raise AssertionError("\n".join(logs))
        time.sleep(0.2)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _nodes(variables: dict[str, str]) -> str:
    return run(["sinfo", "--noheader", "--format=%t"], check=False, **variables).stdout
