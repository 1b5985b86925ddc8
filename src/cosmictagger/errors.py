"""The exceptions of the application, and the one shape their messages have.

A message says what was asked, what was found and what to do, in that order.
"""


class CosmicTaggerError(ValueError):
    """Base of every error the application raises on purpose.

    Attributes:
        is_told: another instance of the run prints it.
    """

    is_told = False


class ConfigError(CosmicTaggerError):
    """The configuration is invalid or contradictory."""


class DataError(CosmicTaggerError):
    """A file of events is missing, damaged or different from the configured file."""


class CheckpointError(CosmicTaggerError):
    """A checkpoint is missing, damaged or of another network."""


class BackendError(CosmicTaggerError):
    """A step did not run where the run says it runs, or cannot run there."""


class TrainingError(CosmicTaggerError):
    """Training cannot go on: a value that is no number."""


class InstanceError(CosmicTaggerError):
    """Instances of one run disagree, or another one has failed or is gone.

    Attributes:
        instance: the one that has failed, where that is known.
    """

    def __init__(self, text: str, instance: int | None = None):
        super().__init__(text)
        self.instance = instance
