"""Self-test of the kernels, against miscompilation on this machine.

Each kernel is called with the sizes of its table in ``cases``, and its results are compared with
exact ones. The test of a program's kinds of kernels runs once per machine and compiler and takes a
fraction of a second; a file in the user's cache records it for later processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import torch

from abele import processor
from abele.kernels import binding, sources
from abele.kernels.build import cache_folder
from abele.locks import Lock
from abele.storage import atomic

#: Returns the object files of kernel sources by name.
Objects = Callable[[Sequence[str]], Iterable[str]]

#: A function of each kind of kernels, whose presence shows that the kind's objects were linked.
_SIGNS = {
    "products": "abele_product",
    "bfloat16_products": "abele_product_bfloat16",
    "rows": "abele_softmax",
    "attention": "abele_attention",
    "recurrent": "abele_recurrent",
    "convolutions": "abele_conv_forward",
    "winograd": "abele_winograd_forward",
    "pointwise": "abele_pointwise_forward",
    "depthwise": "abele_depthwise_forward",
    "patches": "abele_patches_gather",
    "clamped": "abele_clamped_depthwise",
    "pools": "abele_max_pool",
    "upsampling": "abele_upsample",
    "norms": "abele_norm_apply",
    "checksums": "abele_checksum",
    "adam": "abele_adam",
    "sgd": "abele_sgd",
}
_TESTING = Lock()  # torch's number of threads changes meanwhile
_KEPT = 8
_PASSED = set[str]()  # digests, for processes without a cache that can be written


def kinds_in(library: ctypes.CDLL) -> set[str]:
    """Return the kinds of kernels linked into a program or the library."""
    return {kind for kind, function in _SIGNS.items() if hasattr(library, function)}


def problem(
    library: ctypes.CDLL, kinds: Collection[str] | None = None, objects: Objects | None = None
) -> str | None:
    """Describe which kernel fails the self-test, its sizes and error; None if all pass.

    Args:
        library: the kernels, loaded.
        kinds: of the kernels to test; None: all that there are.
        objects: what the library was linked of, whose note is looked for first and written
            afterwards; None where that is not known, so that all is tested.
    """
    with _TESTING:
        for kind in sorted(kinds_in(library) if kinds is None else kinds):
            digest = None if objects is None else _digest(kind, objects)
            if digest is not None and _has_passed(kind, digest):
                continue
            found = _problem(library, kind)
            if found is not None:
                return found
            if digest is not None:
                _note(kind, digest)
    return None


def _problem(library: ctypes.CDLL, kind: str) -> str | None:
    # Not sooner: tables take longer to import than all else that a note spares.
    from abele.kernels.cases import TABLES
    from abele.kernels.cases.case import few_threads, first_problem

    binding.bind(library, (name for name in binding.SIGNATURES if hasattr(library, name)))
    plainly = torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False)
    with contextlib.ExitStack() as stack:
        for each in (*plainly, few_threads()):
            stack.enter_context(each)
        for name, table in TABLES[kind].items():
            found = first_problem(table, library)
            if found is not None:
                return f"the kernel {name} fails its self-test: {found}"
    return None


def _digest(kind: str, objects: Objects) -> str | None:
    """Return a hash of the self-test's tables, machine and objects; None if one is missing."""
    digest = hashlib.sha256(
        f"{_tables()} {processor.name()} {torch.get_num_threads() > 1}".encode()
    )
    try:
        for path in objects(sources.KINDS[kind]):
            digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
    except OSError:
        return None
    return digest.hexdigest()[:32]


@functools.cache
def _tables() -> str:
    folder = Path(__file__).parent / "cases"
    texts = (each.read_bytes() for each in sorted((Path(__file__), *folder.glob("*.py"))))
    return hashlib.sha256(b"".join(texts)).hexdigest()


def _path(kind: str) -> Path:
    return cache_folder() / f"abele_tested_{kind}.txt"


def _has_passed(kind: str, digest: str) -> bool:
    if digest in _PASSED:
        return True
    try:  # whatever else is in the file, these kernels are tested again
        return digest.encode() in _path(kind).read_bytes().split()
    except OSError:
        return False


def _note(kind: str, digest: str) -> None:
    """Record a digest of passed kernels among the last few of its kind."""
    _PASSED.add(digest)
    try:
        before = _path(kind).read_text(encoding="ascii").split()[1 - _KEPT :]
    except (OSError, UnicodeDecodeError):
        before = []
    with contextlib.suppress(OSError):
        atomic.write_text(_path(kind), "\n".join([*before, digest, ""]))
