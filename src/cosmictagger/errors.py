"""The exceptions of CosmicTagger and the common format of their messages.

A message says what was asked, what was found and what to do, in that order.
"""


class CosmicTaggerError(ValueError):
    """Base class of all errors that CosmicTagger raises on purpose.

    Attributes:
        is_told: another instance of the run prints it.
    """

    is_told = False


class ConfigError(CosmicTaggerError):
    """The configuration is invalid or contradictory, or names a file that is not there."""


class DataError(CosmicTaggerError):
    """A file of events is damaged or different from the configured file."""


class CheckpointError(CosmicTaggerError):
    """A checkpoint is damaged or of another network."""


class BackendError(CosmicTaggerError):
    """A step did not run on the configured device, or cannot run there."""


class TrainingError(CosmicTaggerError):
    """Training cannot continue, for instance because the loss is not finite."""


class InstanceError(CosmicTaggerError):
    """Instances of one run disagree, or another instance has failed or exited.

    Attributes:
        instance: the one that has failed, where that is known.
    """

    def __init__(self, text: str, instance: int | None = None):
        super().__init__(text)
        self.instance = instance
