"""What every trainer has: its settings, a log, files and a clock."""

import contextlib
import logging
import os
import time

from settings import ModeKind

logger = logging.getLogger("tagger")


class TrainerBase:
    def __init__(self, args):
        self.args = args
        self._global_step = 0
        self._times = {}

    def is_training(self):
        return self.args.mode.name == ModeKind.train

    @contextlib.contextmanager
    def timing_context(self, name):
        start = time.perf_counter()
        yield
        self._times[name] = self._times.get(name, 0.0) + time.perf_counter() - start

    def get_model_filepath(self):
        folder = os.path.join(self.args.output_dir, "checkpoints")
        name = os.path.join(folder, "model-{}.ckpt".format(self._global_step))
        return folder, name, os.path.join(folder, "latest.txt")

    def log(self, metrics, kind):
        values = ", ".join(f"{key}: {value:.9g}" for key, value in metrics.items())
        logger.info(f"{kind} step {self._global_step} metrics: {values}")
