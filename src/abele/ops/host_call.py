"""Host calls: operators that call a Python function on the host in each program run.

A program names its calls, and a ``HostCalls`` maps the names to functions when it runs. So an
executable contains no Python and may be cached, and two executables may use the same name.
``exchange`` replaces tensors by those of several processes, and copies nothing to the host.
Importing this module registers the operators.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Callable, Generator, Sequence

import torch

from abele.errors import HostCallError
from abele.ops._register import implements, shapes_of
from abele.ops.silence import is_silenced, made_up
from abele.program import declare_effect

Function = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
_TEXT = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]")


class HostCalls:
    """The host functions that a program calls, by name.

    Attributes:
        functions: by the name in the program; takes and returns host tensors.
        failure: what a function raised while the program ran.
    """

    def __init__(self):
        self.functions: dict[str, Function] = {}
        self.failure: BaseException | None = None

    @contextlib.contextmanager
    def in_use(self) -> Generator[None]:
        """Return a context in which running programs call these host functions.

        Compiled code hides what a function raised behind an error of its own; leaving brings the
        first one back.
        """
        self.failure = None
        token = _in_use.set(self)
        try:
            yield
        except Exception:
            failure, self.failure = self.failure, None
            if failure is not None:
                raise failure from None
            raise
        finally:
            _in_use.reset(token)

    def call(self, name: str, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Call a host function, and record the exception if it fails.

        Raises:
            HostCallError: the program names a function that is not here.
        """
        try:
            if name not in self.functions:
                raise HostCallError(
                    f"The program calls {name!r} on the host, which has the functions "
                    f"{sorted(self.functions)}. Capture the model in this process."
                )
            return self.functions[name](inputs)
        except BaseException as error:
            self.failure = error
            raise


# Compiled code calls back in its caller's thread and cannot pass an argument of ours.
_in_use: contextvars.ContextVar[HostCalls] = contextvars.ContextVar("host_calls")


@torch.library.custom_op(
    "abele::host_call",
    mutates_args=(),
    schema="(Tensor[] inputs, Tensor? after, str name, str results) -> Tensor[]",
)
def _host_call(
    inputs: list[torch.Tensor], after: torch.Tensor | None, name: str, results: str
) -> list[torch.Tensor]:
    if is_silenced():
        return made_up(_shapes(inputs, after, name, results))
    device = inputs[0].device if inputs else torch.device("cpu")
    # Clones: the function may write to its arguments and may return them.
    calls = _in_use.get(None) or HostCalls()
    returned = calls.call(name, [value.detach().to("cpu", copy=True) for value in inputs])
    values = [value.detach().to(device, copy=True).contiguous() for value in returned]
    if described(values) != results:
        error = HostCallError(
            f"Host function {name!r} returned {described(values)}, and {results} when the program "
            "was captured. A static program needs the same shapes and types every time."
        )
        calls.failure = error
        raise error
    return values


@shapes_of("abele::host_call")
def _shapes(
    inputs: list[torch.Tensor], after: torch.Tensor | None, name: str, results: str
) -> list[torch.Tensor]:
    device = inputs[0].device if inputs else torch.device("cpu")
    return [
        torch.empty(
            [int(size) for size in match["shape"].split(",") if size],
            dtype=getattr(torch, match["dtype"]),
            device=device,
        )
        for match in _TEXT.finditer(results)
    ]


def described(values: Sequence[torch.Tensor]) -> str:
    """Format dtypes and shapes of tensors, like ``float32[2, 3] int64[]``."""
    kinds = [str(value.dtype).removeprefix("torch.") for value in values]
    return " ".join(f"{kind}{list(v.shape)}" for kind, v in zip(kinds, values, strict=True))


operator = declare_effect(torch.ops.abele.host_call.default)


def host_call(inputs: list[torch.Tensor], name: str, results: str) -> list[torch.Tensor]:
    """Call the host function ``name`` from the program; no gradients.

    Args:
        inputs: what the function receives, as host tensors.
        name: key of ``HostCalls.functions``.
        results: types and shapes of what it returns, as ``described`` writes them.
    """
    return operator([value.detach() for value in inputs], None, name, results)


@implements("abele::exchange", "(Tensor[] values, Tensor? after, str name) -> Tensor[]")
def _exchange(
    values: list[torch.Tensor], after: torch.Tensor | None, name: str
) -> list[torch.Tensor]:
    if is_silenced():
        return [value.clone() for value in values]
    calls = _in_use.get(None) or HostCalls()
    return list(calls.call(name, values))


@shapes_of("abele::exchange")
def _like(values: list[torch.Tensor], after: torch.Tensor | None, name: str) -> list[torch.Tensor]:
    return [torch.empty_like(value) for value in values]


exchange = declare_effect(torch.ops.abele.exchange.default)
