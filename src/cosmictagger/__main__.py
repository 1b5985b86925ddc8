"""Entry point of ``python -m cosmictagger``; see ``cosmictagger.cli``."""

import sys

from cosmictagger.cli import main

if __name__ == "__main__":
    sys.exit(main())
