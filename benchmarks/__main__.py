"""``python -m benchmarks table``: our training steps beside those of other compilers."""

import sys

from benchmarks.table.command import run

if __name__ == "__main__":
    if sys.argv[1:2] != ["table"]:
        sys.exit("usage: python -m benchmarks table [--help]; other benchmarks are scripts")
    sys.exit(run(sys.argv[2:]))
