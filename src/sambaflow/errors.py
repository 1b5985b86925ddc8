"""Exceptions for SambaFlow programs, with one form of message.

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
    """Base of every error that this package raises on purpose."""


class UsageError(SambaError):
    """Invalid arguments of a call, such as unknown names or mismatched tensors."""


class GraphError(SambaError):
    """The model cannot be captured as static programs."""


class InputError(SambaError):
    """Names, shapes or dtypes of tensors differ from those that were compiled."""


class PefError(SambaError):
    """A compiled file cannot be used."""


class PefDamagedError(PefError):
    """The file is missing, cut, altered or of another kind."""


class PefMismatchError(PefError):
    """The file was compiled for another model, other inputs or another optimizer."""
