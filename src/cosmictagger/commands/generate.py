"""``cosmictagger generate``: writes a file of events of the built-in generator."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """Make the file.

    Returns:
        The exit status.
    """
    args = _parser().parse_args(argv)
    from cosmictagger.data import generator
    from cosmictagger.errors import ConfigError

    path = Path(args.output)
    if path.exists() and not args.force:
        raise ConfigError(f"{path} exists already. Choose another --output, or add --force.")
    size = (args.rows, args.columns)
    generator.generate(path, args.events, args.seed, size=size, progress=True)
    print(f"{path}: {args.events} events of {args.rows} x {args.columns}, seed {args.seed}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cosmictagger generate",
        description="Writes events of the built-in generator in the layout of larcv3 files, so "
        "that they can take the place of real ones (data=real data.file=...).",
    )
    parser.add_argument("--events", type=int, required=True, help="how many")
    parser.add_argument("--output", required=True, help="the file to write")
    parser.add_argument("--seed", type=int, default=1, help="equal seeds give equal events (1)")
    parser.add_argument("--rows", type=int, default=1280, help="height of an image (1280)")
    parser.add_argument("--columns", type=int, default=2048, help="width of an image (2048)")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    return parser
