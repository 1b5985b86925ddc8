"""The command line of poprun: what it takes, what it refuses, and its files."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from popdist._run import cli, command_line
from popdist._run.cli import topology_table
from popdist._run.command_line import NO_EFFECT, OPTIONS, Problem
from popdist._run.placement import make_plan

ROOT = Path(__file__).parents[2]


def poprun(capsys, *arguments):
    """Status, standard output, and poprun's log without time and process number."""
    status = cli.main([str(word) for word in arguments])
    captured = capsys.readouterr()
    program = re.findall(r"^\d\d:\d\d:\d\d\.\d{3} \d+ POPRUN (.*)$", captured.err, re.MULTILINE)
    assert len(program) == len(captured.err.splitlines()), captured.err
    return status, captured.out, program


@pytest.mark.parametrize(
    ("line", "given", "program"),
    [
        ("--num-instances 2 python3 x.py --num-instances 3", {"num_instances": 2},
         ["python3", "x.py", "--num-instances", "3"]),
        ("--num-instances=2 -- -odd program", {"num_instances": 2}, ["-odd", "program"]),
        ("--mpi-global-args --tag-output p", {"mpi_global_args": ["--tag-output"]}, ["p"]),
        ("--mpi-local-args '-x A' --mpi-local-args='-x B=1' p",
         {"mpi_local_args": ["-x A", "-x B=1"]}, ["p"]),
        ("-vv p", {"verbose": 2}, ["p"]),
        ("-v -v p", {"verbose": 2}, ["p"]),
        ("--vv p", {"verbose": 2}, ["p"]),
        ("--verbose p", {"verbose": 1}, ["p"]),
        ("-H a,b p", {"host": "a,b"}, ["p"]),
        ("--print-topology p", {"print_topology": True}, ["p"]),
        ("--print-topology no p", {"print_topology": False}, ["p"]),
        ("--reset-partition FALSE --remove-partition=0 --update-partition 1 p",
         {"reset_partition": False, "remove_partition": False, "update_partition": True}, ["p"]),
        ("--allow-run-as-root p", {"allow_run_as_root": True}, ["p"]),
        ("", {}, []),
    ],
)  # fmt: skip
def test_options_end_where_the_program_begins(line, given, program):
    assert command_line.parse(shlex.split(line)) == (given, program)


def test_every_option_of_the_original_is_taken():
    original = (
        "host hostfile host-subnet num-replicas num-instances ipus-per-replica num-ilds "
        "vipu-server-host vipu-server-port vipu-server-timeout vipu-partition vipu-allocation "
        "vipu-cluster vipu-partition-attempts update-partition reset-partition remove-partition "
        "sync-type executable-cache-path mpi-global-args mpi-local-args instance-mpi-local-args "
        "numa-aware print-topology only-output-from-instance offline-mode allow-run-as-root "
        "import-config export-config overwrite-config verbose vv"
    )
    assert {option.name for option in OPTIONS} >= set(original.split())


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("--num-instanses 2 p", 2, r"no option --num-instanses. Did you mean --num-instances\?"),
        ("-q p", 2, "poprun has no option -q. Options of the program come after the program"),
        ("--num-instances 0 p", 2, "--num-instances takes an integer .*, 1 or more, not '0'"),
        ("--num-instances two p", 2, "takes an integer of up to nine digits, 1 or more, not 'two'"),
        ("--numa-aware=perhaps p", 2, "--numa-aware takes yes or no, not 'perhaps'"),
        ("--num-replicas", 2, "--num-replicas needs a value: --num-replicas N"),
        ("--num-instances 4 --num-replicas 6 p", 2,
         "--num-replicas 6 does not divide into --num-instances 4.* Use 4 or 8 replicas"),
        ("--num-instances 4 --num-replicas 2 p", 2, "Use 4 replicas"),
        ("--host a,b,c --num-instances 4 p", 2, "does not divide over 3 hosts.* multiple of 3"),
        ("--num-ilds 3 --num-instances 4 p", 2, "--num-ilds 3 does not divide"),
        ("--host a --hostfile f p", 2, "--host and --hostfile exclude each other"),
        ("--hostfile /no/such/file p", 2, "/no/such/file cannot be read: No such file"),
        ("--host a,b,a p", 2, "The host a is listed twice"),
        ("--host a,,b p", 2, "'' in the list of hosts 'a,,b' is not a host"),
        ("--host -oProxyCommand=x p", 2, "is not a host"),
        (f"--host n[0-{'9' * 5000}] p", 2, r"is not a range such as 0-2, of numbers of up to nine"),
        ("--host n[0-] p", 2, "'0-' in the list of hosts"),
        ("--host a[2-1] p", 2, "'2-1' in the list of hosts 'a\\[2-1\\]' is not a range"),
        ("--host-subnet 10.1 p", 2, "--host-subnet takes a network such as 10.1.0.0/16"),
        ("--only-output-from-instance 2 --num-instances 2 p", 2, "there are 2 instances, from 0"),
        ("--grace-seconds 26 p", 2, "--grace-seconds takes at most 25"),
        ("--master-port 65536 p", 2, "is no port"),
        ("--mpi-local-args '-x' p", 2, "-x needs a variable"),
        ("--mpi-local-args '-x 1=2' p", 2, "-x 1=2 names no variable"),
        ("--mpi-global-args '\"open' p", 2, "cannot be read: No closing quotation"),
        ("--instance-mpi-local-args=7:'-x A=1' p", 2, "names instance 7, but there are 1"),
        ("--instance-mpi-local-args='-x A=1' p", 2, "takes IDX:\"ARGS\""),
        ("--import-config /no/such/file p", 2, "--import-config /no/such/file cannot be read"),
        ("--num-instances 2", 2, "There is no program to run"),
        ("no-such-program-anywhere", 127, "There is no program no-such-program-anywhere"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_before_anything_is_launched(capsys, line, status, said):
    result, out, log = poprun(capsys, *shlex.split(line))
    assert (result, out) == (status, "")
    assert len(log) == 1
    assert log[0].startswith("[E] ")
    assert re.search(said, log[0])


def test_a_script_alone_is_no_program(capsys, tmp_path):
    file = tmp_path / "train.py"
    file.write_text("")
    status, _, log = poprun(capsys, file)
    assert status == 127
    assert log[0].endswith(f"train.py cannot be started as a program; use python3 {file}.")


def test_offline_mode_adds_to_default_options(capsys, monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", "[1]")
    status, _, log = poprun(capsys, "--offline-mode", "yes", sys.executable)
    assert status == 2
    assert "POPTORCH_DEFAULT_OPTIONS, but that is not a JSON object: '[1]'" in log[0]


def test_help_version_and_mistakes_come_without_torch():
    code = """
import sys
from popdist._run.cli import main
for line in (["--help"], ["--version"], ["--num-instances", "2", "--print-topology"], ["--wrong"]):
    main(line)
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "usage: poprun [options] PROGRAM" in done.stdout
    assert "poprun topology" in done.stdout
    assert {"torch", "numpy"}.isdisjoint(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["--help"], ["--num-instances", "2", "--print-topology"]])
def test_a_reader_that_has_seen_enough_is_no_error(words):
    command = [sys.executable, "-m", "popdist.run", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        problems = process.stderr.read()
    assert (process.returncode, problems) == (-signal.SIGPIPE, "")


def test_versions(capsys):
    status, out, _ = poprun(capsys, "--version")
    assert status == 0
    assert re.fullmatch(r"poprun \d+\.\d+.* \(torch \d.*\)\n", out)
    assert json.loads(poprun(capsys, "--version", "--version-format", "json")[1]).keys() == {
        "poprun", "torch",
    }  # fmt: skip


def test_help_of_the_program_is_not_that_of_poprun():
    for words in (
        ["--num-instances", "2", "python3", "x.py", "--help"],
        ["--mpi-global-args", "--help", "python3"],
    ):
        assert command_line.about(command_line.parse(words)[0]) is None
    assert "usage: poprun" in command_line.about(command_line.parse(["--numa-aware", "-h"])[0])


def test_options_survive_a_file(capsys, tmp_path):
    file = tmp_path / "run.json"
    words = ["--num-instances", 2, "--num-replicas", 4, "--mpi-local-args", "-x A=1",
             "--numa-aware", "yes", "-vv"]  # fmt: skip
    assert poprun(capsys, *words, "--export-config", file)[0] == 0
    assert json.loads(file.read_text()) == {
        "num-instances": 2,
        "num-replicas": 4,
        "mpi-local-args": ["-x A=1"],
        "numa-aware": True,
        "verbose": 2,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    given = command_line.read_config(str(file))
    assert given == command_line.parse([str(word) for word in words])[0]
    # The command line wins.
    out = poprun(capsys, "--import-config", file, "--num-replicas", 2, "--print-topology")[1]
    assert out.splitlines()[-1].split() == ["localhost", "0", "0-1", "0-1"]


def test_a_file_is_not_overwritten_unasked(capsys, tmp_path):
    file = tmp_path / "run.json"
    file.write_text("{}")
    words = ["--num-instances", 2, "--export-config", file]
    status, _, log = poprun(capsys, *words)
    assert status == 2
    assert log[0].endswith("exists; choose another name, or add --overwrite-config yes.")
    assert file.read_text() == "{}"
    assert poprun(capsys, *words, "--overwrite-config", "yes")[0] == 0
    assert json.loads(file.read_text()) == {"num-instances": 2}
    status, _, log = poprun(capsys, "--export-config", tmp_path / "no" / "folder")
    assert status == 2
    assert "cannot be written: No such file or directory" in log[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", "is not JSON"),
        ("[2]", 'should hold an object such as {"num-instances": 2}'),
        ('{"num-instanses": 2}', "which is no option. Did you mean --num-instances"),
        ('{"num-instances": -1}', "digits, 1 or more, not '-1'"),
        ('{"import-config": "x"}', "which is no option"),
    ],
)
def test_files_with_mistakes(tmp_path, text, said):
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(Problem, match=re.escape(said)):
        command_line.read_config(str(file))


def test_arguments_of_mpirun():
    texts = [
        "--tag-output --bind-to core -x A -x B=c=d",
        "--mca btl_tcp_if_include eth0",
        "--oddity",
    ]
    result = command_line.read_mpi_arguments([*texts, "-mca pml ob1"], "mpi-global-args")
    assert result.names == ["A"]
    assert result.values == {"B": "c=d", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    assert result.ignored == ["--bind-to core", "--oddity", "-mca pml ob1"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--num-instances 3 ls", "MPI started 4 processes, but --num-instances is 3; leave the"),
        ("--num-replicas 6 ls", "--num-replicas 6 does not divide into --num-instances 4"),
        ("ls", "MPI started processes on several hosts, but does not tell where the first one is"),
        ("no-such-program-anywhere", "There is no program no-such-program-anywhere"),
        ("", "There is no program to run"),
    ],
)
def test_mistakes_in_places_that_others_gave(capsys, monkeypatch, line, said):
    places = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    status, _, log = poprun(capsys, *line.split())
    assert status in (2, 127)
    assert log[0].startswith(f"[E] {said}")


def test_the_reference_lists_every_option():
    page = (ROOT / "docs/reference/poprun.md").read_text()
    expected = [
        f"| `{' '.join([f'--{o.name}', command_line.metavar(o)]).strip()}` "
        f"| {command_line.default(o)} | {o.help if o.group != NO_EFFECT else 'no effect'} |"
        for o in OPTIONS
    ]
    assert re.findall(r"^\| `--.*\|$", page, re.MULTILINE) == expected


def test_the_guide_shows_the_topology_as_it_is():
    guide = (ROOT / "docs/poprun.md").read_text()
    assert f"```text\n{topology_table(make_plan(('a', 'b'), 4, 8))}\n```" in guide


@pytest.mark.parametrize(("to", "status"), [(">/dev/full", 141), (">&-", 0)])
def test_instances_whose_output_cannot_be_written_leave_no_traceback(to, status):
    command = f"{sys.executable} -m popdist.run --num-instances 1 echo hi {to}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert ("stdout cannot be written: No space left" in done.stderr) is (status == 141)
