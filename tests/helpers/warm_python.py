"""A Python for tests that has loaded torch already: programs are forked, not started.

Loading torch takes seconds of processor time, most programs of the tests less than one. `python()`
names a command that is called like `sys.executable`; `spawning()` has `multiprocessing` call it,
too. It passes its open files, folder, arguments and environment to a server, which forks a program
for them; then it ends as the program ends, and ends it if it is killed itself. The server loads
torch and the engine for its first program. Programs do not notice that the engine is loaded: its
modules read nothing of the process. Front-ends do, so each program loads them itself. A program has
one thread of torch's unless OMP_NUM_THREADS says otherwise.

Not for tests of the start of Python itself: of options besides -B, -W, -c and -m, of
`PYTHONHASHSEED`, or of what an import loads. The process that the caller sees has another number
than the program.
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Iterator

# What importing poptorch loads from elsewhere.
PRELOADED = ("numpy", "torch", "torch.onnx", "torch._dynamo", "filelock")
# Names the command of a server that this process did not start, but may use.
SHARED = "ABELE_TESTS_PYTHON"
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src")
MOST_FILES = 64
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@functools.cache
def python() -> str:
    """The command; its server starts with the first call and ends with this process."""
    if not hasattr(os, "pidfd_open"):
        return sys.executable
    if os.path.exists(os.environ.get(SHARED, "")):
        return os.environ[SHARED]
    folder = tempfile.mkdtemp(prefix="abele-tests-python-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address, path = os.path.join(folder, "socket"), os.path.join(folder, "python")
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(16)
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", str(listener.fileno())],
            stdin=subprocess.PIPE,  # it ends when nobody holds the other end
            env=variables,
            pass_fds=[listener.fileno()],
        )
    atexit.register(server.communicate)
    words = shlex.join([sys.executable, "-I", "-S", __file__, "ask", address])
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\nexec {words} "$@"\n')
    os.chmod(path, 0o755)
    return path


def run_program(
    *arguments: object, cwd: str | os.PathLike[str] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program, which imports what this process can; its output is captured.

    Args:
        arguments: of ``python()``: options, the program, its own arguments.
        cwd: the folder to run it in.
        variables: of the environment, beside those of this process.
    """
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    return subprocess.run(
        [python(), *map(str, arguments)],
        env=os.environ | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Has the processes that `multiprocessing` starts in this one forked, too."""
    from multiprocessing import spawn  # not for each program that is asked for

    before = spawn.get_executable()
    spawn.set_executable(python())
    try:
        yield
    finally:
        spawn.set_executable(before)


def _ask(address: str, arguments: list[str]) -> int:
    """The client: passes everything on and ends as the program did."""
    files = [0, 1, 2, *_inherited()]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    request = json.dumps([files, arguments, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(connection, [struct.pack("!I", len(request))], files)
    connection.sendall(request)
    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda given, _: connection.sendall(bytes([given])))
    status = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))[0]
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL needs no handler and takes none
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _inherited() -> list[int]:
    """The files that this process was given beside its streams."""
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    numbers = sorted({int(name) for name in os.listdir(listing)} - {0, 1, 2, listing})
    os.close(listing)
    given = []
    for number in numbers:
        with contextlib.suppress(OSError):  # the one that listed them is closed again
            given += [number] if os.get_inheritable(number) else []
    return given


def _serve(listener: socket.socket) -> list[str]:
    """The server: returns in the forked programs only, with their arguments."""
    if listener not in select.select([listener, 0], [], [])[0]:
        os._exit(0)  # nobody has asked for a program
    for name in PRELOADED:
        importlib.import_module(name)
    _load_engine()
    gc.collect()
    gc.freeze()  # so that collections of the programs leave the shared memory alone
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if 0 in readable:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _keep(connection)
        connection.close()


def _load_engine() -> None:
    """Imports the engine, but for commands that do without torch and for what is run by name."""
    sys.path.insert(0, os.path.realpath(SOURCE))
    engine = importlib.import_module("abele")
    for module in pkgutil.walk_packages(engine.__path__, "abele."):
        if not module.name.startswith(("abele.port.", "abele.__main__")):
            importlib.import_module(module.name)
    del sys.path[0]


def _keep(connection: socket.socket) -> list[str]:
    """A process for each program: passes signals in and the status out."""
    head, files, _, _ = socket.recv_fds(connection, 4, MOST_FILES)
    request = connection.recv(struct.unpack("!I", head)[0], socket.MSG_WAITALL)
    pid = os.fork()
    if pid == 0:
        connection.close()
        return _become(files, *json.loads(request))
    for number in (*files, 0):
        os.close(number)
    ended = os.pidfd_open(pid)
    while ended not in select.select([ended, connection], [], [])[0]:
        for number in connection.recv(16) or [signal.SIGKILL]:
            os.kill(pid, number)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # the caller was killed
        connection.sendall(struct.pack("!i", status))
    os._exit(0)


def _become(
    files: list[int],
    numbers: list[int],
    arguments: list[str],
    folder: str,
    variables: dict[str, str],
) -> list[str]:
    """Makes this process what a new one would be.

    Args:
        files: open ones of the new process.
        numbers: by which it knows each of them.
        arguments: of the command line.
        folder: it runs in.
        variables: its environment.
    """
    import numpy as np
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    # First out of the way of each other.
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD, max(numbers) + 1) for file in files]
    for file in files:
        os.close(file)
    for number, copy in zip(numbers, copies, strict=True):
        if number > 2 and os.path.exists(f"/proc/self/fd/{number}"):
            raise RuntimeError(f"file {number} is one that the server has open itself")
        os.dup2(copy, number)
        os.close(copy)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = [*filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)), *sys.path]
    np.random.seed()
    # Those of torch that wait for each other take all of a processor that the tests share.
    torch.set_num_threads(int(variables.get("OMP_NUM_THREADS") or 1))
    return arguments


def _warn(option: str) -> None:
    """What -W asks for."""
    action, *category = option.split(":")[::2]
    warned = getattr(__import__("builtins"), *category or ["Warning"])
    warnings.simplefilter(action, category=warned)  # type: ignore[reportArgumentType]
    sys.warnoptions.append(option)


def _run(arguments: list[str]) -> None:
    """Runs a program as the interpreter would."""
    while arguments[0].startswith(("-B", "-W")):
        option = arguments.pop(0)
        if option == "-B":
            sys.dont_write_bytecode = True
        else:
            _warn(option[2:] or arguments.pop(0))
    first, *rest = arguments
    if first == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[1:]
        sys.modules.pop(rest[0], None)  # it runs as __main__, as if nobody had imported it
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        text, name = rest[0], "<string>"
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        sys.argv = arguments
        name = module.__file__ = first
        with open(first) as file:
            text = file.read()
    exec(compile(text, name, "exec"), module.__dict__)


def _end(status: int) -> None:
    """Ends the program as the interpreter would, but leaves loaded modules to the system.

    Taking apart what the server had loaded costs a quarter of a second, more than most programs.
    """
    threading._shutdown()  # type: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    program = vars(sys.modules["__main__"])
    if program is not globals():
        program.clear()  # its objects end, and its files are written
    with contextlib.suppress(OSError):  # where nobody reads that, the interpreter says so
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        os._exit(_ask(sys.argv[2], sys.argv[3:]))
    program = _serve(socket.socket(fileno=int(sys.argv[2])))
    try:
        _run(program)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        _end((ended.code or 0) & 0xFF)
    except Exception as error:  # noqa: BLE001 - reported as the interpreter would
        sys.excepthook(type(error), error, error.__traceback__)
        _end(1)
    _end(0)
