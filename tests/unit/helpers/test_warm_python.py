"""Programs that tests fork from a warm Python end as those that are started."""

import multiprocessing
import os
import subprocess
import sys

import pytest

from helpers.warm_python import python, spawning

THREAD = "import threading; threading.Timer(0.1, print, ['thread']).start()"
OBJECT = "class Kept:\n    def __del__(self): print('end')\nkept = Kept()"


@pytest.mark.parametrize(
    "program",
    [
        "print('text', end='')",
        "import sys; sys.exit(3)",
        "import sys; sys.exit(-1)",
        "import sys; sys.exit('reason')",
        "import sys; sys.stdout.close()",
        "import os, sys; sys.stdout.write('text'); os.close(1)",
        "import atexit; atexit.register(print, 'end'); print('begin'); 1 / 0",
        "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 15)",
        THREAD,
        OBJECT,
        "kept = open('text', 'w'); kept.write('written')",
    ],
)
def test_a_forked_program_ends_as_one_that_is_started(tmp_path, program):
    endings = []
    for interpreter in (sys.executable, python()):
        folder = tmp_path / str(len(endings))
        folder.mkdir()
        run = [interpreter, "-W", "ignore", "-c", program]
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
        files = {path.name: path.read_text() for path in folder.iterdir()}
        endings.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:], files))
    assert endings[0] == endings[1]


def test_a_program_has_the_files_that_it_is_given():
    reading, writing = os.pipe()
    program = f"import os; os.write({writing}, b'text')"
    subprocess.run([python(), "-B", "-c", program], pass_fds=[writing], check=True)
    os.close(writing)
    with os.fdopen(reading) as file:  # which ends: nobody else holds the other end
        assert file.read() == "text"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_starts_programs_that_have_torch(method):
    context = multiprocessing.get_context(method)
    with spawning(), context.Pool(1) as pool:
        modules = pool.apply(_modules)
    assert "torch" in modules


def _modules():
    return list(sys.modules)
