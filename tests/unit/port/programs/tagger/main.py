"""A trainer with a switch of compute modes: ``main.py run.compute_mode=CPU run.iterations=20``."""

import logging
import sys

import settings
from trainer import Trainer

logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)


def main():
    trainer = Trainer(settings.read(sys.argv[1:]))
    trainer.initialize()
    trainer.batch_process()


if __name__ == "__main__":
    main()
