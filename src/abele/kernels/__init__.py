"""C++ kernels for the operators in ``abele/ops``, compiled once per machine into a static library.

Compiled programs link the library in, so that an executable stays one file. The library's name
holds a hash of everything that decides its code; two versions never meet.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

import torch

from abele._torch import OpOverload
from abele.errors import CompilerError
from abele.ops import few_channel_conv, max_pool
from abele.program import Program
from abele.storage import files, temporary

#: Importing these modules registers the operators.
OPERATORS = (few_channel_conv, max_pool)

FOLDER = Path(__file__).parent

# The kernels, and what compiled programs call: only the latter knows torch.
KERNELS = ("few_channel_conv.cpp", "max_pool.cpp")
SHIMS = ("shims.cpp",)
# What programs that run operator by operator call; see abele/targets/cpu/op_by_op.
OP_BY_OP = ("norm_activation.cpp", "adam.cpp", "image_conv.cpp", "image_pool.cpp")

# No -ffast-math: NaN and infinity must keep their meaning.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wno-psabi",
)

# Declarations of the functions in shims.cpp, by the operator that generated code replaces by them.
_TENSOR, _INTS = "AtenTensorHandle {}", "const int64_t* {0}, int64_t {0}_length"
_SHIMS = {
    "few_channel_conv": (
        *(_TENSOR.format(name) for name in ("x", "weight", "*bias")),
        *(_INTS.format(name) for name in ("stride", "padding")),
        _TENSOR.format("*result"),
    ),
    "few_channel_conv_backward": (
        *(_TENSOR.format(name) for name in ("grad", "x", "weight")),
        *(_INTS.format(name) for name in ("stride", "padding")),
        "const int32_t* output_mask, int64_t output_mask_length",
        *(_TENSOR.format(name) for name in ("*grad_x", "*grad_weight", "*grad_bias")),
    ),
    "max_pool": (
        _TENSOR.format("x"),
        *(_INTS.format(name) for name in ("kernel", "stride")),
        *(_TENSOR.format(name) for name in ("*values", "*indices")),
    ),
}


def shims() -> dict[OpOverload, str]:
    """Return the C function behind each operator, as a declaration."""
    return {
        _operator(name): f"AOTITorchError aoti_torch_cpu_{name}({', '.join(arguments)})"
        for name, arguments in _SHIMS.items()
    }


def used_by(program: Program) -> bool:
    """Return whether ``program`` calls any of the operators."""
    operators = {_operator(name) for name in _SHIMS}
    return any(node.target in operators for node in program.graph.graph.nodes)


def _operator(name: str) -> OpOverload:
    return getattr(torch.ops.abele, name).default


@functools.cache
def fingerprint() -> str:
    """Return a hash of the sources and flags; needs no compiler."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted((*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h"))):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def static_library(compiler: str, instruction_set: str) -> Path:
    """Return the library for compiled programs to link, compiled unless it is there already.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has; another one needs another library.

    Raises:
        CompilerError: the compiler does not accept the kernels.
    """
    name = _name(compiler, instruction_set)
    path = cache_folder() / f"libabele_kernels_{name}.a"
    if not path.is_file():
        with temporary.folder(path.parent) as folder:
            objects = _compile(compiler, folder, KERNELS + SHIMS)
            archive = os.path.join(folder, path.name)
            _output([os.environ.get("AR") or "ar", "rcs", archive, *objects])
            os.replace(archive, path)
    return path


def op_by_op_library(compiler: str, instruction_set: str) -> bytes:
    """Return the kernels of ``OP_BY_OP`` as a shared library, compiled unless it is there already.

    Takes and raises what ``static_library`` does.
    """
    path = cache_folder() / f"libabele_op_by_op_{_name(compiler, instruction_set)}.so"
    if not path.is_file():
        with temporary.folder(path.parent) as folder:
            objects = _compile(compiler, folder, OP_BY_OP, "-fvisibility=default")
            library = os.path.join(folder, path.name)
            _output([compiler, "-shared", "-fopenmp", "-o", library, *objects])
            os.replace(library, path)
    with files.open_regular(path) as file:
        return file.read()


def _name(compiler: str, instruction_set: str) -> str:
    """Return a hash of everything that decides the code of a library."""
    version = _output([compiler, "--version"])
    parts = (fingerprint(), version, instruction_set, platform.machine(), torch.__version__)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def shared_library(compiler: str, path: Path) -> Path:
    """Return the kernels alone as a shared library, to call them without a program."""
    with temporary.folder() as folder:
        # Nobody links this one, so its functions have to be visible.
        objects = _compile(compiler, folder, KERNELS, "-fvisibility=default")
        _output([compiler, "-shared", "-fopenmp", "-o", str(path), *objects])
    return path


def _compile(compiler: str, folder: str, sources: tuple[str, ...], *more_flags: str) -> list[str]:
    headers = Path(torch.__file__).parent / "include"
    objects: list[str] = []
    for source in sources:
        objects.append(os.path.join(folder, f"{source}.o"))
        command = [compiler, *FLAGS, *more_flags, f"-I{headers}", "-c", str(FOLDER / source)]
        _output([*command, "-o", objects[-1]])
    return objects


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompilerError(f"{command[0]} could not be started: {error.strerror}.") from error
    if done.returncode != 0:
        raise CompilerError(
            f"abele's kernels could not be compiled: {command[0]} failed. "
            "Set CXX to another C++ compiler (g++ 11 or clang++ 14, or later).",
            log=f"{' '.join(command)}\n{done.stdout}{done.stderr}",
        )
    return done.stdout


@functools.cache
def cache_folder() -> Path:
    """Return the user's cache, or a folder of this process alone where that cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "abele"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if folder.is_dir() and os.access(folder, os.W_OK):
        return folder
    temporary.sweep()
    return Path(tempfile.mkdtemp(prefix=f"{temporary.prefix()}kernels-"))
