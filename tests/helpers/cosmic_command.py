"""The command `cosmictagger` with a tiny network, for tests that start it as several instances.

Words such as ``1:run.id=y`` are for that instance alone. Besides keys of the configuration there
are ``1:folder=PATH``, where it runs, ``1:full=TEXT``: its disk is full for files with that in their
names, and ``1:died=TEXT``: it is killed when it writes one.
"""

import contextlib
import os
import signal
import sys

import torch

from abele.storage import atomic
from cosmictagger import cli, launch
from helpers.cosmic_small import PlaneNet


def main(words: list[str]) -> int:
    torch.set_num_threads(1)
    launch.models.build = lambda network, image_size: PlaneNet()
    index = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
    arguments = []
    for word in words:
        owner, alone, text = word.partition(":")
        if not alone or not owner.isdecimal():
            arguments.append(word)
        elif owner == index:
            arguments += _changed(text)
    return cli.main(arguments)


def _changed(text: str) -> list[str]:
    name, _, value = text.partition("=")
    if name == "folder":
        os.chdir(value)
    elif name in ("full", "died"):
        _cannot_write(value, killed=name == "died")
    else:
        return [text]
    return []


def _cannot_write(text: str, *, killed: bool) -> None:
    original = atomic.replacing

    @contextlib.contextmanager
    def replacing(path):
        with original(path) as file:
            if text in path.name and killed:
                os.kill(os.getpid(), signal.SIGKILL)
            if text in path.name:
                raise OSError(28, "No space left on device", str(path))
            yield file

    atomic.replacing = replacing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
