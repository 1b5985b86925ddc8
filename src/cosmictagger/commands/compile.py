"""``cosmictagger compile``: makes the PEF file of RDU mode without training."""

from cosmictagger import sources
from cosmictagger.config.composing import Config
from cosmictagger.config.keys import ComputeMode, ModeKind
from cosmictagger.errors import ConfigError
from cosmictagger.launch import launched
from cosmictagger.recording import logger


def run(config: Config) -> None:
    """Compile the training program of a configuration into its output folder."""
    if config.run.compute_mode is not ComputeMode.RDU or config.mode.name is not ModeKind.train:
        raise ConfigError(
            "compile makes the file that training in RDU mode loads. Add run.compute_mode=RDU; "
            "other modes compile by themselves at their first step."
        )
    with launched(config) as launch, sources.training(config, launch.data_seed) as events:
        from cosmictagger.backends.rdu import RduBackend

        backend = launch.backend(events.image_size, training=True)
        assert isinstance(backend, RduBackend)
        logger.info(f"Compiled {backend.compile(events.image_size)}")
