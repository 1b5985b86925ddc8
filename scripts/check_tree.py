"""Check what linters do not: sizes of files, functions and folders, first lines of docstrings."""

import ast
import collections
import re
import subprocess
import sys
from pathlib import Path

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 40
MAX_BYTES = 500_000
# Indexes and tooltips show first lines alone. These words need the code beneath.
UNCLEAR = re.compile(
    r"(Also|As|Both|By|Here|How|In|It|Its|Likewise|Of|One|Such|That|The same|Their|There|These|They"
    r"|This|Those|What|When|Where|Whether|Which|Who|Whose)\b"
)
# Lines of Python and C++ per folder, in hundreds. They only go down: a commit that raises one says
# which published program, test of the original or row of a benchmark needs it.
BUDGETS = {
    "src": 1172,
    "src/abele/_torch": 24,
    "src/abele/arena": 12,
    "src/abele/capture": 35,
    "src/abele/collectives": 12,
    "src/abele/compilation": 34,
    "src/abele/differences": 12,
    "src/abele/dynamo": 7,
    "src/abele/fit": 15,
    "src/abele/functions": 76,
    "src/abele/kernels": 135,
    "src/abele/ops": 21,
    "src/abele/passes": 33,
    "src/abele/pipeline": 12,
    "src/abele/port": 81,
    "src/abele/program": 16,
    "src/abele/report": 50,
    "src/abele/runtime": 34,
    "src/abele/stage": 11,
    "src/abele/step": 15,
    "src/abele/storage": 12,
    "src/abele/targets": 137,
    "src/abele/trace": 35,
    "src/cosmictagger": 103,
    "src/gcipuinfo": 1,
    "src/gctools": 11,
    "src/popart": 2,
    "src/popdist": 31,
    "src/poptorch": 168,
    "src/sambaflow": 33,
    "tests": 947,
    "tests/unit/port": 54,
    "benchmarks": 88,
}


def main() -> int:
    """Print every breach; return the exit status."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    paths = [Path(line) for line in listed.stdout.splitlines() if Path(line).is_file()]
    problems = [f"{p}: {p.stat().st_size} bytes" for p in paths if p.stat().st_size > MAX_BYTES]
    for path in paths:
        if path.suffix == ".py" and path.parts[0] in ("src", "examples", "benchmarks", "scripts"):
            problems += _sizes(path)
    sources = [path for path in paths if path.suffix == ".py" and path.parts[0] == "src"]
    for path in sources:
        problems += _unclear(path)
    problems += _over_budget(paths)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _over_budget(paths: list[Path]) -> list[str]:
    lines = collections.Counter[str]()
    for path in paths:
        if path.suffix in (".py", ".cpp", ".h"):
            count = path.read_text(encoding="utf-8").count("\n")
            for folder in path.parents:
                lines[folder.as_posix()] += count
    return [
        f"{folder}: {lines[folder]} lines, at most {100 * hundreds}"
        for folder, hundreds in BUDGETS.items()
        if lines[folder] > 100 * hundreds
    ]


def _unclear(path: Path) -> list[str]:
    """Return the docstrings whose first word refers to something outside of them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        f"{path}:{line}: a first line says what it is about: {first}"
        for node in ast.walk(tree)
        for line, first in _first_lines(node)
        if UNCLEAR.match(first)
    ]


def _first_lines(node: ast.AST) -> list[tuple[int, str]]:
    """Return line and first line of the docstrings of a node and of its attributes."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    texts = [] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else node.body[1:]
    texts = [*node.body[:1], *texts]
    return [
        (text.lineno, text.value.value.strip().split("\n")[0])
        for text in texts
        if isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]


def _sizes(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    problems = (
        [f"{path}: {lines} lines, at most {MAX_FILE_LINES}"] if lines > MAX_FILE_LINES else []
    )
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _code_lines(node)
            if length > MAX_FUNCTION_LINES:
                problems.append(
                    f"{path}:{node.lineno}: {node.name} has {length} lines of code, "
                    f"at most {MAX_FUNCTION_LINES}"
                )
    return problems


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a body without its docstring; long signatures are welcome."""
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return 0 if not body else (body[-1].end_lineno or 0) - body[0].lineno + 1


if __name__ == "__main__":
    sys.exit(main())
