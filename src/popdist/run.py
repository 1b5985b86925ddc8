"""Entry point of ``python -m popdist.run``, the command ``poprun``."""

import sys

from popdist._run.cli import main

if __name__ == "__main__":
    sys.exit(main())
