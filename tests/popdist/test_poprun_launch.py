"""Real runs of poprun: what instances get, print and leave behind, and how they end."""

import os
import signal
import socket
import stat
import sys
import time
from pathlib import Path

import pytest

from helpers.launching import Server
from helpers.warm_python import python

PYTHON = sys.executable


@pytest.fixture(scope="module")
def server():
    started = Server()
    yield started
    started.close()


@pytest.fixture
def poprun(server, tmp_path):
    """Runs a program, given as text, under poprun; options come first."""

    def run(options, program, *, start=False, command=PYTHON, arguments=(), **environment):
        file = tmp_path / "program.py"
        file.write_text("import os, signal, subprocess, sys, time\n" + program)
        begin = server.start if start else server.run
        return begin(tmp_path, *options, command, file, *arguments, **environment)

    yield run
    server.tidy()


TELL = """
import json
variables = {n: v for n, v in os.environ.items() if n.startswith((
    "POPDIST_", "OMPI_", "MASTER_", "OMP_", "POPTORCH_", "TORCHELASTIC_", "COLOUR", "POPRUN_I"))}
variables |= {n: os.environ[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
print(json.dumps(variables | {"arguments": sys.argv[1:], "stdin": sys.stdin.read()}))
print("to stderr", file=sys.stderr)
"""


def told(run, count):
    import json

    return [json.loads(run.lines(rank)[0]) for rank in range(count)]


REACHED = """
port = int(os.environ["MASTER_PORT"])
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{name}").readlines()[1:]:
        local, _, state = line.split()[1:4]
        if state == "0A" and int(local.rpartition(":")[2], 16) == port:
            print(local.rpartition(":")[0])
"""
SECRET = """
import glob
secret = os.environ["ABELE_RUN_SECRET"].encode()
shown = 0
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        shown += secret in open(path, "rb").read()
    except OSError:
        pass
print(secret.decode(), shown)
"""


def test_nobody_outside_reaches_the_store_of_instances_on_this_machine(poprun):
    run = poprun(["--num-instances", "2"], REACHED)
    assert (run.status, run.lines(0), run.lines(1)) == (0, ["0100007F"], ["0100007F"])


def test_each_run_has_a_secret_that_no_command_line_shows(poprun):
    secrets = []
    for _ in range(2):
        run = poprun(["--num-instances", "2"], SECRET, ABELE_RUN_SECRET="of somebody else")
        assert run.lines(0) == run.lines(1)
        secret, shown = run.lines(0)[0].split()
        assert (len(secret), shown) == (32, "0")
        secrets.append(secret)
    assert secrets[0] != secrets[1]


def test_every_instance_is_told_its_part(poprun, tmp_path):
    options = [
        "-v", "--num-instances=2", "--num-replicas", "6", "--ipus-per-replica", "2",
        "--mpi-global-args", "--tag-output", "--mpi-local-args", "-x COLOUR=blue -x HOME",
        '--instance-mpi-local-args=1:"-x COLOUR=red"'.replace('"', ""),
        "--executable-cache-path", "cache", "--offline-mode", "yes", "--vipu-partition", "p",
        "--update-partition=yes",
    ]  # fmt: skip
    run = poprun(options, TELL, arguments=["--num-instances", "${local_rank}", "$HOME"])
    assert run.status == 0, run.err
    first, second = told(run, 2)
    port = first.pop("MASTER_PORT")
    # There if this test runs under nohup.
    first.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
    assert 1024 <= int(port) <= 65535
    assert first == {
        "POPDIST_NUM_TOTAL_REPLICAS": "6",
        "POPDIST_NUM_IPUS_PER_REPLICA": "2",
        "POPDIST_NUM_LOCAL_REPLICAS": "3",
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
        "POPDIST_REPLICA_INDEX_OFFSET": "0",
        "POPDIST_LOCAL_INSTANCE_INDEX": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2)),
        "POPTORCH_CACHE_DIR": str(tmp_path / "cache"),
        "POPTORCH_DEFAULT_OPTIONS": '{"useOfflineIpuTarget": []}',
        "TORCHELASTIC_ERROR_FILE": "",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "poprun",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "COLOUR": "blue",
        "arguments": ["--num-instances", "${local_rank}", "$HOME"],
        "stdin": "",
    }
    changed = {name for name in first if first[name] != second[name]}
    assert changed == {
        "POPDIST_REPLICA_INDEX_OFFSET", "POPDIST_LOCAL_INSTANCE_INDEX", "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK", "RANK", "LOCAL_RANK", "COLOUR",
    }  # fmt: skip
    assert (second["POPDIST_REPLICA_INDEX_OFFSET"], second["COLOUR"]) == ("3", "red")
    assert run.lines(1, "stderr") == ["to stderr"]
    (without_effect,) = [line for line in run.log if "without effect" in line]
    assert without_effect.endswith("no IPU partition here: --vipu-partition, --update-partition")
    assert "[I] All instances ended with exit status 0" in run.log


def test_the_first_instance_that_fails_decides(poprun):
    program = """
rank = int(os.environ["RANK"])
print("before", rank)
if rank == 1:
    for line in range(30):
        print("line", line, file=sys.stderr)
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))  # as if it lost its connection
time.sleep(100)
"""
    run = poprun(["--num-instances", "3"], program)
    assert run.status == 7
    host = socket.gethostname()
    said = "\n".join(run.log)
    assert f"[E] Instance 1 on {host} ended with exit status 7 first. Its last lines:\n" in said
    assert said.endswith("[E]   line 28\n[E]   line 29")
    assert "line 19" not in said
    assert "line 20" in said


def test_a_signal_is_told_by_name_and_helpers_may_clean_up_after_it(poprun, tmp_path):
    program = """
# A helper that, like that of shared memory, cleans up when the program dies, and ignores signals.
helper = '''
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.read()
open("cleaned", "w").close()
'''
subprocess.Popen([sys.executable, "-c", helper], stdin=subprocess.PIPE)
subprocess.Popen(["sleep", "1000"], start_new_session=True)  # and one that stays
time.sleep(0.3)
print("dying", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = poprun(["--num-instances", "1"], program)
    assert run.status == 128 + signal.SIGKILL
    assert "was killed by SIGKILL (signal 9)" in run.err
    assert (tmp_path / "cleaned").exists()


def test_all_instances_start_anew_after_a_failure(poprun, tmp_path):
    program = """
rank, attempt = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt)
if rank == "1" and attempt < 2:
    sys.exit(3)
if attempt < 2:
    time.sleep(100)
"""
    run = poprun(["--num-instances", "2", "--max-restarts", "5"], program)
    assert run.status == 0, run.err
    assert run.lines(1) == ["attempt 0", "attempt 1", "attempt 2"]
    host = socket.gethostname()
    assert run.log == [
        f"[W] Instance 1 on {host} ended with exit status 3; starting all 2 instances anew "
        f"(restart {n} of 5)"
        for n in (1, 2)
    ]


STAY = """
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("here", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphans_whatever_ends_poprun(poprun, number):
    run = poprun(["--num-instances", "2"], STAY, start=True)
    run.until(lambda: run.out.count("here") == 2, "both instances")
    assert len(run.processes()) > 4
    run.signal(number)
    if number == signal.SIGKILL:
        assert run.wait() == -number
    else:
        assert run.wait() == 128 + number
        assert f"Ended by {signal.Signals(number).name}" in run.err


REDUCE = """
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print("sum", value.item(), dist.get_world_size())
dist.destroy_process_group()
"""


def test_instances_find_each_other_through_torch(poprun):
    run = poprun(["--num-instances", "2"], REDUCE, command=python())
    assert run.status == 0, run.err
    assert run.lines(0) == run.lines(1) == ["sum 3.0 2"]


@pytest.fixture
def other_hosts(tmp_path, monkeypatch):
    """An ssh that knows the hosts alpha and beta, and runs what they should run here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "ssh"
    script.write_text("""#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
case $host in
  alpha|beta) cd /; exec env -i PATH=/usr/bin:/bin POPRUN_TEST_MARK=$POPRUN_TEST_MARK \\
      REMOTE=$host sh -c "$*";;
esac
echo "Pseudo-terminal will not be allocated" >&2
echo "ssh: Could not resolve hostname $host: Name or service not known" >&2
exit 255
""")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_hosts_are_reached_by_ssh(poprun, other_hosts, tmp_path):
    program = """
print(os.environ.get("REMOTE"), os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"], os.getcwd(),
      os.environ.get("TAKEN"), os.environ.get("ONE"), os.environ.get("LEFT"),
      os.environ["MASTER_ADDR"] != "127.0.0.1")
if len(sys.argv) > 1 and os.environ["RANK"] == "3":
    os.kill(os.getpid(), signal.SIGKILL)
if len(sys.argv) > 1:
    time.sleep(1000)
"""
    options = [
        "--host",
        "localhost,alpha,beta",
        "--num-instances",
        "6",
        "--mpi-local-args",
        "-x TAKEN",
        "--instance-mpi-local-args=2:-x ONE",
    ]
    more = other_hosts | {"TAKEN": "yes", "ONE": "1", "LEFT": "behind"}
    run = poprun(options, program, **more)
    assert run.status == 0, run.err
    assert run.lines(1) == [f"None 1 0 {tmp_path} yes 1 behind True"]
    assert run.lines(2) == [f"alpha 0 1 {tmp_path} yes 1 None True"]
    assert run.lines(5) == [f"beta 1 2 {tmp_path} yes None None True"]
    run = poprun(options, program, arguments=["fail"], **more)
    assert run.status == 137
    assert "Instance 3 on alpha was killed by SIGKILL (signal 9) first" in run.err


def test_hosts_that_cannot_start_an_instance_are_named(poprun, other_hosts, server, tmp_path):
    run = poprun(["-H", "alpha,nowhere", "--num-instances", "2"], "time.sleep(99)", **other_hosts)
    assert run.status == 255
    assert "Instance 1 on nowhere lost its connection (ssh ended with status 255) first" in run.err
    assert "Could not resolve hostname nowhere" in run.log[-1]
    run = server.run(tmp_path, "-H", "alpha", "no-such-program", **other_hosts)
    assert run.status == 127
    assert "Instance 0 on alpha could not be started" in run.err
    assert "no-such-program cannot be started: No such file" in run.log[-1]


def test_a_port_that_is_taken_is_told(poprun):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = poprun(["--master-port", str(port)], "print('no')")
    assert run.status == 2
    assert run.out == ""
    assert f"[E] --master-port {port} cannot be listened on" in run.err
    program = """
assert os.environ["MASTER_PORT"] == os.environ["PORT"]
socket = __import__("socket").create_connection(("127.0.0.1", int(os.environ["PORT"])))
sys.exit(1 - int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
"""
    options = ["--master-port", str(port), "--max-restarts", "1"]
    assert poprun(options, program, PORT=str(port)).status == 0


def test_a_rank_of_slurm_is_adopted(poprun):
    slurm = {
        "SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77", "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[07-08]", "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    }  # fmt: skip
    run = poprun(
        ["--num-replicas", "8"], "import json\nprint(json.dumps(dict(os.environ)))", **slurm
    )
    import json

    data = json.loads(run.out)
    names = (
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
        "POPDIST_REPLICA_INDEX_OFFSET", "OMPI_COMM_WORLD_RANK", "POPDIST_LOCAL_INSTANCE_INDEX",
    )  # fmt: skip
    assert [data[name] for name in names] == ["3", "4", "1", "2", "n07", "6", "3", "1"]
    assert 20000 <= int(data["MASTER_PORT"]) < 30000


SHARE = """
from multiprocessing import Process, shared_memory
if __name__ == "__main__":
    name = f"{os.environ['NAME']}-{os.environ['RANK']}"
    kept = shared_memory.SharedMemory(create=True, size=1000, name=name)
    Process(target=time.sleep, args=[1000]).start()
    print("pid", os.getpid())
    time.sleep(1000)
"""


def test_restarts_come_to_an_end(poprun):
    run = poprun(["--max-restarts", "1"], "print('again'); sys.exit(4)")
    assert run.status == 4
    assert run.lines(0) == ["again", "again"]


@pytest.mark.parametrize("victim", ["instance", "shim", "poprun"])
def test_no_shared_memory_is_left_whoever_is_killed(poprun, victim, tmp_path):
    name = f"poprun-{tmp_path.name}-{os.getpid()}"
    run = poprun(["--num-instances", "2"], SHARE, start=True, NAME=name)
    run.until(lambda: run.out.count("pid") == 2, "both instances")
    assert len(list(Path("/dev/shm").glob(f"{name}*"))) == 2
    candidates = {
        "instance": [int(run.lines(1)[0].split()[1])],
        "shim": [pid for pid, line in run.processes().items() if "shim.py" in line],
        "poprun": [run.pid],
    }
    os.kill(candidates[victim][0], signal.SIGKILL)
    assert run.wait() == (-9 if victim == "poprun" else 137)
    assert not list(Path("/dev/shm").glob(f"{name}*"))


@pytest.mark.parametrize("seconds", [0, 1])
def test_who_ignores_signals_is_killed_after_the_time_of_grace(poprun, seconds):
    program = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("here", flush=True)
time.sleep(1000)
"""
    run = poprun(["--grace-seconds", seconds], program, start=True)
    run.until(lambda: "here" in run.out, "the instance")
    began = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert time.monotonic() - began < 20


def test_a_program_sees_a_signal_once_and_may_end_by_itself(poprun):
    program = """
def stop(number, frame):
    print("stopping")
    time.sleep(0.3)
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("here", flush=True)
time.sleep(1000)
"""
    run = poprun([], program, start=True)
    run.until(lambda: "here" in run.out, "the instance")
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert run.lines(0) == ["here", "stopping", "saved"]
