"""C++ calls of multithreaded kernels: a template for small work, else a library function.

Compiling these templates takes longer than all other code of a transformer's program, so the
kernel library contains them. For single-threaded work, the template with constant sizes is used.
"""

from __future__ import annotations

#: Templates that the library has, too, by the same name (``kernels/rows.cpp``).
OF_THE_LIBRARY = frozenset(
    {
        *("layer_norm", "layer_norm_backward", "layer_norm_weights"),
        *("group_norm", "group_norm_backward", "softmax", "softmax_backward"),
        "nll_loss_backward",
        *("sum_columns", "sum_rows", "embedding_backward"),
    }
)


def call(
    name: str,
    most: int,
    kind: tuple[bool | int, ...],
    arguments: str,
    *,
    of_floats: bool = True,
) -> str:
    """Return the C++ call of a multithreaded kernel.

    Args:
        name: of the template.
        most: maximum of useful threads.
        kind: further template parameters, which are the library function's first arguments.
        arguments: C++ arguments without the thread count.
        of_floats: all tensors are float32; the library supports nothing else.
    """
    flags = [str(each).lower() for each in kind]
    if most > 1 and of_floats and name in OF_THE_LIBRARY:
        return f"abele_{name}({', '.join([*flags, arguments])}, abele::at_most({most}, threads))"
    return f"abele::{name}<{', '.join([str(most), *flags])}>({arguments}, threads)"
