"""Two instances by real ssh, mpirun, srun and sbatch; ``scripts/test --real`` installs these."""

import os
import signal
import sys

import pytest

from helpers import real_parts
from helpers.real_parts import OTHER_HOSTS, missing, run

PROGRAM = """
import hashlib
import os
import signal
import sys

import torch

import popdist
import popdist.poptorch
import poptorch

LISTENING = "0A"


class Regression(torch.nn.Linear):
    def forward(self, x, y):
        return torch.nn.functional.mse_loss(super().forward(x), y)


popdist.init()
options = popdist.poptorch.Options().randomSeed(1).showCompilationProgressBar(False)
torch.manual_seed(0)
model = Regression(4, 3)
training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
x, y = torch.randn(2, 8, 4).unbind(), torch.randn(2, 8, 3).unbind()
index = popdist.getInstanceIndex()
for _ in range(5):
    training(x[index], y[index])
weights = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()[:16]
port, addresses = int(os.environ["MASTER_PORT"]), set()
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{name}").readlines()[1:]:
        local, _, state = line.split()[1:4]
        if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
            addresses.add(local.rpartition(":")[0])
told = [index, popdist.getNumInstances(), weights, *sorted(addresses)]
sys.stdout.write("RESULT " + " ".join(map(str, told)) + "\\n")
"""
LOOPBACK = "0100007F"
POPRUN = [sys.executable, "-m", "popdist.run"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program as a file, in a folder from which everything is started."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    monkeypatch.setenv("ABELE_TARGET", "reference")
    return file


def check(printed):
    """Both instances end with the same weights; nobody else reaches their store."""
    lines = [line.partition("RESULT ")[2].split() for line in printed.splitlines()]
    results = sorted(words for words in lines if words)
    assert [words[:2] for words in results] == [["0", "2"], ["1", "2"]], printed
    assert results[0][2:] == results[1][2:]
    assert results[0][3:] == [LOOPBACK]


@pytest.fixture(scope="module", autouse=True)
def _ended_like_ctrl_c():
    """Lets SIGTERM end the tests with their daemons."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


def needs(*programs):
    """Skips where programs are not installed; the mark ``real`` skips where nobody asked."""
    reason = missing(*programs)
    return pytest.mark.skipif(bool(reason), reason=reason)


@pytest.fixture(scope="module")
def ssh():
    with real_parts.ssh() as command:
        yield command


@pytest.fixture(scope="module")
def slurm():
    with real_parts.slurm() as variables:
        yield variables


@pytest.mark.real
@needs("sshd", "ssh-keygen", "setpriv")
@pytest.mark.parametrize("hosts", [f"localhost,{OTHER_HOSTS[0]}", ",".join(OTHER_HOSTS)])
def test_poprun_over_ssh(program, ssh, hosts):
    forwarded = ["--mpi-local-args", "-x ABELE_TARGET"]
    command = [*POPRUN, *forwarded, "--host", hosts, "--num-instances", 2, sys.executable, program]
    check(run(command, POPRUN_SSH=ssh).stdout)


@pytest.mark.real
@needs("sshd", "ssh-keygen", "setpriv")
def test_a_program_that_fails_on_another_host_ends_all(program, ssh, tmp_path):
    program.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n    print('no data here')\n    sys.exit(7)\n"
        "time.sleep(300)\n"
    )
    hosts = f"localhost,{OTHER_HOSTS[0]}"
    command = [*POPRUN, "--host", hosts, "--num-instances", 2, sys.executable, program]
    done = run(command, check=False, POPRUN_SSH=ssh)
    assert done.returncode == 7
    assert f"Instance 1 on {OTHER_HOSTS[0]} ended with exit status 7 first" in done.stderr


@pytest.mark.real
@needs("mpirun")
@pytest.mark.parametrize("by", [[], POPRUN], ids=["alone", "poprun"])
def test_mpirun(program, by):
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(real_parts.free_port())}
    command = [*mpirun, *by, sys.executable, program]
    check(run(command, **({} if by else place)).stdout)


@pytest.mark.real
@needs("munged", "slurmctld", "slurmd", "srun", "sbatch", "setpriv")
def test_srun(program, slurm):
    check(run(["srun", "-n", 2, *POPRUN, sys.executable, program], **slurm).stdout)


@pytest.mark.real
@needs("munged", "slurmctld", "slurmd", "srun", "sbatch", "setpriv")
@pytest.mark.parametrize(
    ("by", "options"), [("srun -n 2", ""), ("", "--num-instances 2")], ids=["srun", "poprun"]
)
def test_sbatch(program, slurm, tmp_path, by, options):
    """``sbatch --wait`` asks less and less often, so that it ends up to half a minute late."""
    script = tmp_path / "job.sh"
    start = f"{by} {sys.executable} -m popdist.run {options}"
    script.write_text(f"#!/bin/sh\n{start} {sys.executable} {program}\n")
    run(["sbatch", "--wait", "-n", 2, f"--output={tmp_path}/job.log", script], **slurm)
    check((tmp_path / "job.log").read_text())
