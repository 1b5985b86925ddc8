"""What goes wrong between a program and the way it was started."""


class Error(RuntimeError):
    """The environment is not one of poprun, or something went wrong between instances.

    Differs from the original: a class of its own, so that programs can tell it from others.
    """
