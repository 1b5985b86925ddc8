"""The error for a program that does not fit the way it was started."""


class Error(RuntimeError):
    """The environment is not one of poprun, or something went wrong between instances.

    Differs from the original: a class of its own, so that programs can tell it from others.
    """


class CheckpointError(Error):
    """A checkpoint cannot be written, or training cannot go on from it."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was left out."""
