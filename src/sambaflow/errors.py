"""Exceptions of SambaFlow programs.

    SambaError
    |- UsageError          a call or a command line asks for what does not exist
    |- GraphError          the model cannot become static programs
    |- InputError          tensors of a run are not those that were compiled
    `- PefError            a PEF file cannot be used
       |- PefDamagedError      it is missing, cut, altered or no PEF
       `- PefMismatchError     it is sound but was compiled for something else

A message says what was compiled, what was given and what to do.
"""


class SambaError(Exception):
    """Base class of all errors that sambaflow raises on purpose."""


class UsageError(SambaError):
    """Invalid arguments of a call, such as unknown names or mismatched tensors."""


class GraphError(SambaError):
    """The model cannot be captured as static programs."""


class InputError(SambaError):
    """Names, shapes or dtypes of tensors differ from the compiled program's."""


class PefError(SambaError):
    """Base class: a compiled file (PEF) cannot be used."""


class PefDamagedError(PefError):
    """The compiled file (PEF) is missing, truncated, modified or of another format."""


class PefMismatchError(PefError):
    """The compiled file (PEF) is for another model, other inputs or another optimizer."""
