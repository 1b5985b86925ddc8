"""Names of PopTorch 3.4 that are not built yet, so that using one says so."""

NAMES = frozenset(("load",))
EXECUTOR_MEMBERS = frozenset(
    (
        "compileAndExport",
        "loadExecutable",
        "save",
    )
)


def explain(name: str) -> str:
    """What to tell somebody who uses ``name``."""
    return (
        f"{name} is part of PopTorch 3.4 and not in abele yet; the table 'What works' in README.md "
        "lists what is."
    )
