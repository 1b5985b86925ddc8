"""The exceptions of the application, and the one shape their messages have.

    CosmicTaggerError (a ValueError)
    |- ConfigError       the configuration asks for something that cannot be
    |- DataError         a file of events is missing, damaged or not what was asked for
    `- CheckpointError   a checkpoint is missing, damaged or of another network

A message says what was asked, what was found and what to do, in that order.
"""


class CosmicTaggerError(ValueError):
    """Base of every error the application raises on purpose."""


class ConfigError(CosmicTaggerError):
    """The configuration asks for something that cannot be."""


class DataError(CosmicTaggerError):
    """A file of events is missing, damaged or not what was asked for."""


class CheckpointError(CosmicTaggerError):
    """A checkpoint is missing, damaged or of another network."""
