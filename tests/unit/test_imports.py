"""Imports point one way, and private torch names live in one file."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FRONT_ENDS = {"popart", "poptorch", "popdist", "sambaflow", "cosmictagger"}
TOOLS = {"gctools", "gcipuinfo"}  # see the machine, not the engine
FORBIDDEN = {
    "abele": FRONT_ENDS | TOOLS | {"examples", "benchmarks", "tests"},
    "gctools": FRONT_ENDS | {"gcipuinfo", "abele", "torch", "examples", "benchmarks", "tests"},
    "gcipuinfo": FRONT_ENDS | {"abele", "torch", "examples", "benchmarks", "tests"},
    "popart": (FRONT_ENDS - {"popart"}) | {"abele", "torch", "examples", "benchmarks", "tests"},
    "popdist": (FRONT_ENDS - {"popdist", "poptorch"}) | {"examples", "benchmarks", "tests"},
    "poptorch": {"popdist", "sambaflow", "cosmictagger", "examples", "benchmarks", "tests"},
    "sambaflow": (FRONT_ENDS - {"sambaflow"}) | {"examples", "benchmarks", "tests"},
    "cosmictagger": {"popart", "examples", "benchmarks", "tests"},
}
FILES = sorted(SOURCE.rglob("*.py"))
# Folders and files of a package: each imports only those before it, whatever depth it has itself.
# A package inside another has an order of its own. Files that stand before their folder have a dot.
ORDERS = {
    "abele": (
        *(
            "errors",
            "questions",
            "version",
            "arguments",
            "containers",
            "contexts",
            "libraries",
            "tracebacks",
            "compilers",
            "processor",
            "systems",
            "locks",
            "storage",
            "cpython",
            "_torch",
        ),
        *(
            "program",
            "warn",
            "variables",
            "step",
            "collectives",
            "ops",
            "trace",
            "kernels",
            "arena",
            "passes",
        ),
        *("capture", "targets", "compilation", "runtime", "dynamo", "pipeline"),
        *("report", "functions", "fit", "stage", "differences", "port"),
        *("doctor", "docs", "completion", "__main__"),
    ),
    "poptorch": (
        *("enums", "_error", "_logging", "_version", "options", "autocasting", "processes"),
        *("_wrapper.distribution", "_wrapper.errors", "_wrapper.process", "profiling"),
        *("_forward", "_wrapper.translate", "_wrapper.pipelines"),
        *("_wrapper.capture", "_wrapper.progress", "_wrapper.compiled", "_data", "_optim"),
        *("optim", "_state", "_report", "_fit", "_files", "_wrapper", "resuming"),
        *("ops", "testing", "poptorch_core", "_impl", "_poplar_executor", "_utils"),
    ),
    "popdist": (
        *("_environment", "poptorch", "_instances", "_horovod"),
        *("checkpoint", "_run", "run", "places"),
    ),
    "sambaflow": ("errors", "logging", "mac", "samba"),
    "sambaflow.samba": (
        *("env", "directives", "lazy_param", "materialize", "profiler", "sambatensor"),
        *("_arguments", "sambaloader", "optim", "nn", "_optimizers", "_pef"),
        *("_compiling", "_loaded", "_session", "utils", "test"),
    ),
}


def packages_of(path):
    """The ordered packages that a file is in, but for those whose front door it is."""
    folders = {package: SOURCE / package.replace(".", "/") for package in ORDERS}
    return [
        package
        for package, folder in folders.items()
        if path.is_relative_to(folder) and path != folder / "__init__.py"
    ]


ORDERED = [path for path in FILES if packages_of(path)]
# What the application uses of the engine itself; programs it sees through the front-ends only.
SERVICES = {"storage", "collectives", "errors", "processor", "report", "systems", "version", "warn"}
SERVICES |= {"arguments"}
# The one room for private names of torch serves all packages; the original's popdist derives from
# the other.
SUPPORTED = ("abele._torch", "poptorch.options._DistributedOptions")
# OpOverload is the type of a graph's targets; _BatchNorm is the base class of all batch norms.
ALLOWED = {"torch._ops.OpOverload", "torch.nn.modules.batchnorm._BatchNorm"}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


@functools.cache
def imported(tree):
    """Dotted names of all modules that a file imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dotted(node):
    """``torch._ops.OpOverload`` for a chain of attributes, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


@functools.cache
def named(tree):
    """Dotted names that a file uses or imports."""
    return {dotted(node) for node in ast.walk(tree)} | imported(tree)


def is_private(name):
    """Whether a dotted name leads through torch to something with a leading underscore."""
    first, *rest = name.split(".")
    is_operator = rest[:1] == ["ops"]
    dunder = all(part.startswith("__") for part in rest if part.startswith("_"))
    return first == "torch" and not is_operator and not dunder


def private_names(tree):
    names = named(tree)
    chains = {name for name in names if is_private(name)}
    # Of torch._ops and torch._ops.OpOverload only the longer one says what is used.
    return {name for name in chains if not any(o.startswith(f"{name}.") for o in chains)} - ALLOWED


def test_all_packages_are_covered():
    assert {path.relative_to(SOURCE).parts[0] for path in FILES} <= FORBIDDEN.keys()


def faults(files, names_of):
    """What a rule says of each file that breaks it: one test for all, thousands would take long."""
    results = {str(path.relative_to(SOURCE)): sorted(names_of(path)) for path in files}
    assert results, "the rule has no file to look at"
    return {file: names for file, names in results.items() if names}


def lower_packages(path):
    """Packages that a file imports and its own must not know."""
    package = path.relative_to(SOURCE).parts[0]
    return {name.split(".")[0] for name in imported(tree_of(path))} & FORBIDDEN[package]


def test_imports_point_one_way():
    assert faults(FILES, lower_packages) == {}


TARGETS = SOURCE / "abele" / "targets"
# Who imports neither: what both share, and GPUs, which are no kind of processor.
WITHOUT = {"translation": ("cpu", "cuda"), "cuda": ("cpu",)}


def other_targets(path):
    """Targets that a file imports and must not know."""
    room = path.relative_to(TARGETS).parts[0]
    unwanted = tuple(f"abele.targets.{name}." for name in WITHOUT[room])
    return {name for name in imported(tree_of(path)) if f"{name}.".startswith(unwanted)}


def test_targets_share_what_belongs_to_none_of_them():
    files = [path for path in FILES if any(path.is_relative_to(TARGETS / name) for name in WITHOUT)]
    assert faults(files, other_targets) == {}


APPLICATION = [path for path in FILES if path.is_relative_to(SOURCE / "cosmictagger")]


def parts_of_the_engine(path):
    """Rooms of the engine that a file imports and that are no service."""
    names = imported(tree_of(path))
    return {name.split(".")[1] for name in names if name.startswith("abele.")} - SERVICES


def test_the_application_sees_programs_through_the_front_ends():
    assert faults(APPLICATION, parts_of_the_engine) == {}


def room_of(name, package):
    """The folder or file of a package that a dotted name is in."""
    first, _, rest = name.removeprefix(f"{package}.").partition(".")
    file = f"{first}.{rest.partition('.')[0]}"
    return file if file in ORDERS[package] else first


def rooms(path, package):
    """The folder or file of a package that a file is in, and those that it imports."""
    names = {name for name in imported(tree_of(path)) if name.startswith(f"{package}.")}
    return room_of(module_of(path), package), {room_of(name, package) for name in names}


def later_rooms(path):
    """Rooms that a file imports and that come after its own, in any package that it is in."""
    later = set()
    for package in packages_of(path):
        room, needed = rooms(path, package)
        later |= needed - {*ORDERS[package][: ORDERS[package].index(room)], room}
    return later


def test_no_import_inside_a_package_climbs():
    assert faults(ORDERED, later_rooms) == {}


def private_parts(path):
    """Names with a leading underscore that a file reads of another package of this repository."""
    package = path.relative_to(SOURCE).parts[0]
    for name in named(tree_of(path)):
        first, *rest = name.split(".")
        private = any(part.startswith("_") and not part.startswith("__") for part in rest)
        foreign = first in FORBIDDEN and first != package
        if foreign and private and not name.startswith(SUPPORTED):
            yield name


def test_no_package_reads_a_private_name_of_another():
    assert faults(FILES, private_parts) == {}


def module_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imported_modules(path):
    """Modules of this repository that a file imports, inside functions too."""
    names = imported(tree_of(path))
    names = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    return names & MODULES.keys() - {module_of(path)}


def circles(needs):
    """The modules that import each other in the end, by removing those that nothing holds."""
    needs = {module: set(others) for module, others in needs.items()}
    while free := {module for module, others in needs.items() if not others & needs.keys()}:
        needs = {module: others for module, others in needs.items() if module not in free}
    return sorted(needs)


def test_no_files_import_each_other():
    assert circles({module: imported_modules(path) for module, path in MODULES.items()}) == []


def test_the_search_for_circles():
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": set()}) == ["a", "b"]


# What writes programs of front-ends has to name them; it imports none of them.
WRITES_PROGRAMS = SOURCE / "abele" / "port"
ENGINE = [
    path
    for path in FILES
    if path.is_relative_to(SOURCE / "abele") and not path.is_relative_to(WRITES_PROGRAMS)
]
# Words of front-ends, of their launchers and of the device they were made for.
WORDS = re.compile(
    r"pop(torch|dist|run|art)|samba|cosmictagger|\bipus?\b|isrunningonipu|trainingmodel|gc-monitor",
    re.IGNORECASE,
)


# These know how much memory that device has, and say its name to people who ask about it.
ITS_MEMORY = {
    SOURCE / "abele" / name
    for name in (
        "__main__.py",
        "fit/command.py",
        "fit/limits.py",
        "stage/command.py",
        "stage/memory.py",
    )
}
DEVICE = re.compile(r"\bipus?\b", re.IGNORECASE)


def words_of_front_ends(path):
    """Texts of a file that name a front-end."""
    nodes = ast.walk(tree_of(path))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    texts = [text for text in texts if isinstance(text, str)]
    if path in ITS_MEMORY:
        texts = [DEVICE.sub("", text) for text in texts]
    return [text for text in texts if WORDS.search(text)]


def test_the_engine_names_no_front_end():
    assert faults(ENGINE, words_of_front_ends) == {}


def test_private_torch_names_live_in_one_file():
    others = [path for path in FILES if path.parent.name != "_torch"]
    assert faults(others, lambda path: private_names(tree_of(path))) == {}


@pytest.mark.parametrize(
    ("rule", "file", "code", "fault"),
    [
        (lower_packages, "abele/step/x.py", "import sambaflow.samba", "sambaflow"),
        (parts_of_the_engine, "cosmictagger/x.py", "from abele.capture import core", "capture"),
        (later_rooms, "abele/step/x.py", "from abele.runtime import session", "runtime"),
        (private_parts, "sambaflow/x.py", "from abele.step import _x", "abele.step._x"),
        (words_of_front_ends, "abele/step/x.py", "'for poptorch'", "for poptorch"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_rule_sees_its_fault(monkeypatch, rule, file, code, fault):
    monkeypatch.setitem(globals(), "tree_of", lambda path: ast.parse(code))
    assert faults([SOURCE / file], rule) == {file: [fault]}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import torch._inductor", {"torch._inductor"}),
        ("from torch._C import x", {"torch._C.x"}),
        ("torch._C._aoti.f()", {"torch._C._aoti.f"}),
        ("from torch.utils import _pytree", {"torch.utils._pytree"}),
        ("isinstance(x, torch._ops.OpOverload)", set()),
        ("torch.ops.aten._ctc_loss(x)", set()),
        ("torch.__version__; torch.nn.Module", set()),
        ("x._schema", set()),
    ],
)
def test_the_search_itself(code, names):
    assert private_names(ast.parse(code)) == names


@pytest.mark.parametrize(
    ("package", "compiler"),
    [
        ("abele", "torch._inductor"),
        ("popdist", "torch"),
        ("poptorch", "torch._dynamo"),
        ("gcipuinfo", "torch"),
        ("gctools.monitor", "torch"),
    ],
)
def test_importing_loads_neither_the_compiler_nor_a_higher_layer(package, compiler):
    code = f"import sys, {package}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert package in modules
    assert not {compiler, "triton", "torch.utils.flop_counter", "sympy.printing.cxx"} & modules
    assert not modules & (FORBIDDEN[package.split(".")[0]] - {package})
