"""C++ calls of multithreaded kernels: a template for small work, else a library function.

A compiler needs more time for these templates than for all other code of a transformer's program,
so the library has them. One thread's work is small: there the compiler knows all sizes.
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
        most: how many threads have enough to do.
        kind: the template's further parameters, the first ones of the library's function.
        arguments: all but the number of threads.
        of_floats: all tensors are of float32; the library has nothing else.
    """
    flags = [str(each).lower() for each in kind]
    if most > 1 and of_floats and name in OF_THE_LIBRARY:
        return f"abele_{name}({', '.join([*flags, arguments])}, abele::at_most({most}, threads))"
    return f"abele::{name}<{', '.join([str(most), *flags])}>({arguments}, threads)"
