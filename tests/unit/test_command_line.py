"""The command ``abele``: what it says of itself."""

import os
import re
import subprocess
import sys

import pytest

from abele import __main__
from abele.arguments import Parser, known_words
from abele.version import __version__


def test_help_lists_every_command_and_does_not_wait_for_torch():
    run = "import sys; from abele.__main__ import main\ntry: main(['--help'])\n"
    run += "finally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, command in __main__._COMMANDS.items():
        assert f"    {name}" in done.stdout
        assert command.summary.split()[0] in done.stdout


@pytest.mark.parametrize("name", __main__._COMMANDS)
def test_each_command_teaches_its_arguments(name, capsys):
    with pytest.raises(SystemExit) as ended:
        __main__.main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: abele {name}" in text
    assert re.search("^  [a-zA-Z-]+(, --[a-z]+)?  +[a-zA-Z]", text, re.MULTILINE)
    assert f"examples:\n  abele {name}" in text


@pytest.mark.parametrize(
    "line",
    [f"{name} {words}" for name, each in __main__._COMMANDS.items() for words in each.examples],
)
def test_each_example_is_a_command_that_parses(line):
    words = line.partition(" -- ")[0].split()
    assert __main__._parser(words[:1]).parse_args(words).name == words[0]


def test_without_a_command_there_is_help(capsys):
    assert __main__.main([]) == 2
    assert "make the page of a run" in capsys.readouterr().err


def test_its_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        __main__.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"abele {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"), [(["frob"], "invalid choice: 'frob'"), (["port"], "required")]
)
def test_wrong_commands_are_refused_with_what_there_is(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        __main__.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("limit", [["--limit=-5GiB"], ["--limit", "0"]])
@pytest.mark.parametrize("command", [["fit"], ["stage", "--ipus", "2"]])
def test_a_limit_below_zero_is_refused_with_what_it_must_be(command, limit, capsys):
    assert __main__.main([*command, "train.py", *limit]) == 1
    size = limit[-1].removeprefix("--limit=")
    said = f"abele {command[0]}: A limit of {size!r} leaves no memory. Give a size above zero."
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("command", [["fit"], ["stage", "--ipus", "2"]])
def test_arguments_of_a_script_belong_behind_two_dashes(command, capsys):
    with pytest.raises(SystemExit) as ended:
        __main__.main([*command, "train.py", "--epochs", "3"])
    assert ended.value.code == 2
    unknown = "unrecognized arguments: --epochs 3; those of SCRIPT come behind --"
    assert unknown in capsys.readouterr().err


def test_output_that_cannot_be_written_is_said():
    command = f"{sys.executable} -m abele --help >/dev/full"
    variables = {key: each for key, each in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["sh", "-c", command], env=variables, stderr=subprocess.PIPE, text=True, check=False
    )
    said = "abele: standard output cannot be written: No space left on device.\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("reprot profile", "report for reprot"),
        ("doctor --jsn", "--json for --jsn"),
        ("fit --limt 8GiB train.py", "--limit for --limt"),
        ("fit train.py --limt=8GiB", "--limit for --limt"),
        ("port train.py --outptu ported", "--output for --outptu"),
        ("port train.py --scan --to torhc", "torch for torhc"),
        ("port --scna --chekc 3 train.py", "--scan for --scna, --check for --chekc"),
    ],
)
def test_a_misspelt_command_or_option_is_told_what_was_meant(line, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        __main__.main(line.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f". Did you mean {meant}?\n")


@pytest.mark.parametrize("line", ["xyz", "fit", "fit train.py --qqq", "report --out a --json b"])
def test_nothing_is_suggested_where_nothing_is_near_or_misspelt(line, capsys):
    with pytest.raises(SystemExit):
        __main__.main(line.split())
    assert "Did you mean" not in capsys.readouterr().err


def test_words_behind_two_dashes_are_not_looked_at(capsys):
    parser = Parser(prog="x")
    parser.add_argument("--epochs", required=True)
    with pytest.raises(SystemExit):
        parser.parse_args(["--", "--epoch5"])
    assert "Did you mean" not in capsys.readouterr().err


def test_the_whole_parser_has_the_options_of_all_commands():
    words = {*known_words(__main__._whole_parser())}
    assert {*__main__._COMMANDS} - {"port", "completion"} <= words
    assert {"--limit", "--ipus", "--compare", "--text"} <= words


COMPLETES = """
eval "$({python} -m abele completion bash)"
for line in re 'report --te' 'port --sc'; do
  COMP_WORDS=(abele $line); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
  _shtab_abele; echo "${{COMPREPLY[@]}}"
done
"""


def test_bash_completes_commands_and_options():
    pytest.importorskip("shtab")
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        ["bash", "-c", COMPLETES.format(python=sys.executable)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["report", "--text", "--scan"]
