"""Names of torch's compiler front-end that torch does not promise to keep, each with its reason."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Generator


@contextlib.contextmanager
def compiled_functions_run_plainly() -> Generator[None]:
    """While open, a trace sees what ``torch.compile`` was given instead of being refused.

    The public ``torch.compiler.set_stance("force_eager")`` is read later than the check for a
    trace, which raises unless this setting is off; then the original function runs.
    """
    config = importlib.import_module("torch._dynamo.config")
    with warnings.catch_warnings(), config.patch(error_on_nested_fx_trace=False):
        # Module hooks record scopes; a compiled module would open its scope twice.
        about_hooks = r"Using `torch\.compile\(module\)` when there are global hooks"
        warnings.filterwarnings("ignore", about_hooks, UserWarning)
        yield
