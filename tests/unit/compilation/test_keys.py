"""Keys that cannot collide: programs that differ in one detail have the same code or other keys."""

import ast
import dataclasses
import importlib
import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import abele
from abele import ExecutableCache, StepConfig, build, get_target, passes
from abele.compilation import keys
from abele.compilation.portable_executable import captured_in, pack, restore
from abele.compilation.serialization import from_text, to_text
from abele.kernels import packaged, sources
from abele.step.config import MatmulPrecision, MeanStrategy, OutputMode, Reduction
from abele.step.replica_groups import GroupType
from abele.storage.container import Container, write
from abele.targets import candidates
from abele.targets.cpu.emitted.calling import to_text as plan_text
from abele.targets.cpu.emitted.lowering import Emitted, planned_code
from helpers.models import MODELS
from helpers.runs import captured, rule_for

CPU = get_target("cpu")
PACKAGE = Path(abele.__file__).parent
INFERENCE = StepConfig(training=False)
X = torch.linspace(-1, 1, 18).reshape(3, 6)
SQUARE = torch.linspace(-2, 2, 36).reshape(6, 6)
TRIANGLE = SQUARE.tril()
HALF_NAN = torch.tensor([0x7E00, 0x3C00], dtype=torch.int16).view(torch.float16)
compiler_of_cpu = importlib.import_module("abele.targets.cpu.compiler")


class Uses(torch.nn.Module):
    """A function of a batch and of one constant, which may be any Python value."""

    def __init__(self, function: Callable, constant: Any):
        super().__init__()
        self._function, self._constant = function, constant

    def forward(self, x, scale=2.0):
        return self._function(x, self._constant) * scale


def programs_of(function: Callable, constant: Any) -> tuple[abele.Program, ...]:
    return tuple(map(passes.run, captured(Uses(function, constant), (X,), INFERENCE).programs))


def key(programs, config=INFERENCE) -> str:
    return keys.key_of(keys.key_parts(programs, config, CPU))


def code(programs) -> list[Any]:
    """All that executables have of programs: text, how it is called, and constants in memory."""
    parts: list[Any] = []
    for program in programs:
        lowered = passes.run_only(program, Emitted.passes)
        plan = planned_code(lowered)
        calling = plan.calling()
        parts += [plan.source.text, plan_text(calling)]
        for name in calling.constants:
            value = lowered.graph.get_buffer(name)
            data = value.contiguous().reshape(-1).view(torch.uint8).tolist()
            parts.append((name, value.dtype, value.stride(), data))
    return parts


def times(x, constant):
    return x * constant


def added(x, constant):
    return x + constant.to(x.dtype).sum()


def product(x, constant):
    return x @ constant


def planes(x, constant):
    return x.sum() * constant


def turned(value: torch.Tensor) -> torch.Tensor:
    """The same values stored column by column."""
    return value.t().contiguous().t()


def nan(payload: int) -> float:
    return struct.unpack(">d", struct.pack(">Q", 0x7FF8000000000000 | payload))[0]


def words(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32).view(torch.float32)


ZEROS, ROW = torch.zeros(6), torch.arange(6.0)
IMAGES = torch.linspace(0, 1, 48).reshape(2, 3, 4, 2)
PAIRS = {
    "strides of a matrix": (product, TRIANGLE, turned(TRIANGLE)),
    "strides of one more": (times, SQUARE[:3], turned(SQUARE[:3])),
    "channels last": (planes, IMAGES, IMAGES.to(memory_format=torch.channels_last)),
    "a value": (product, SQUARE, SQUARE + torch.eye(6)),
    "one bit": (times, words(*[0x3F800000] * 6), words(0x3F800001, *[0x3F800000] * 5)),
    "the sign of zero": (times, ZEROS, -ZEROS),
    "the payload of NaN": (times, words(*[0x7FC00000] * 6), words(0x7FC00001, *[0x7FC00000] * 5)),
    "the payload of a half": (added, HALF_NAN, (HALF_NAN.view(torch.int16) | 1).view(torch.half)),
    "float and double": (added, ROW, ROW.double()),
    "int and long": (added, ROW.int(), ROW.long()),
    "bytes and flags": (added, torch.ones(6, dtype=torch.uint8), torch.ones(6, dtype=torch.bool)),
    "float and int of equal bits": (added, words(*range(6)), torch.arange(6, dtype=torch.int32)),
    "the shape": (added, torch.ones(2, 3), torch.ones(3, 2)),
    "sign of a number": (times, 0.0, -0.0),
    "type of a number": (times, 1, 1.0),
    "payload of a number": (times, nan(0), nan(1)),
    "infinity": (times, float("inf"), float("-inf")),
    "an axis": (lambda x, dim: x.sum(dim, keepdim=True), 0, 1),
    "a flag": (lambda x, keep: x.sum(0, keepdim=keep) + x, True, False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_detail_of_a_constant_makes_another_key(name):
    function, first, second = PAIRS[name]
    one, other, again = (programs_of(function, each) for each in (first, second, first))
    assert key(one) == key(again)
    assert code(one) == code(again)
    assert key(one) != key(other)


PIECE = torch.linspace(0, 1, 40)
COPIED = {
    "a piece of other memory": (PIECE[7:13], PIECE[7:13].clone()),
    "an expanded one": (torch.ones(1).expand(6), torch.ones(6)),
    "shared memory": (PIECE[:6], PIECE[:6]),
}


@pytest.mark.parametrize("name", COPIED)
def test_memory_that_constants_are_a_part_of_makes_other_keys_or_the_same_code(name):
    def both(x, pair):
        return x * pair[0] + pair[1]

    first, second = COPIED[name]
    one, other, apart = (
        programs_of(both, pair)
        for pair in ((first, first), (second, second), (first, second.clone()))
    )
    for pair in itertools.combinations((one, other, apart), 2):
        assert code(pair[0]) == code(pair[1]) or key(pair[0]) != key(pair[1])


def as_default(constant):
    class Module(torch.nn.Module):
        def forward(self, x, factor=constant):
            return x * factor

    return Module()


@pytest.mark.parametrize("pair", [(2.0, 3.0), (0.0, -0.0), (True, 1), (ROW, -ROW)], ids=str)
def test_defaults_and_closures_are_constants(pair):
    for make in (as_default, lambda constant: Uses(lambda x, _: x * constant, None)):
        one, other = (captured(make(each), (X,), INFERENCE).programs for each in pair)
        assert key(one) != key(other)


@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"]
)
def test_the_layout_of_weights_counts(layout):
    torch.manual_seed(0)
    module = torch.nn.Conv2d(3, 4, 2)
    plain = captured(module, (IMAGES,), INFERENCE).programs
    moved = captured(module.to(memory_format=layout), (IMAGES,), INFERENCE).programs
    assert (key(plain) == key(moved)) == (layout is torch.contiguous_format)


def test_roles_and_names_of_types_count():
    class Holder(torch.nn.Module):
        def __init__(self, as_parameter):
            super().__init__()
            if as_parameter:
                self.w = torch.nn.Parameter(torch.ones(6))
            else:
                self.register_buffer("w", torch.ones(6))

        def forward(self, x):
            return x * self.w

    one, other = (captured(Holder(each), (X,), INFERENCE).programs for each in (True, False))
    assert key(one) != key(other)


def test_weights_are_no_part_of_the_key():
    def trained(seed):
        module = MODELS["dense"].fresh(seed=seed)
        return captured(module, MODELS["dense"].batch(), None, rule_for(module)).programs

    assert key(trained(1), StepConfig()) == key(trained(2), StepConfig())


# -- loops and branches --------------------------------------------------------------------------


def test_constants_inside_a_branch_count():
    def branching(x, constant):
        return torch.cond(x.sum() > 0, lambda x: x * constant, lambda x: x + constant, (x,))

    one, other = (programs_of(branching, each) for each in (ROW, ROW + 1))
    assert key(one) != key(other)
    again = from_text(*to_text(one[0]))
    assert again.fingerprint() == one[0].fingerprint()


# -- options -------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {
    "training": False,
    "gradient_accumulation": 3,
    "replicas": 2,
    "processes": 2,
    "reduction": Reduction.SUM,
    "mean_strategy": MeanStrategy.RUNNING,
    "stochastic_rounding": True,
    "trap_exceptions": True,
    "matmul_precision": MatmulPrecision.MEDIUM,
    "adopts": True,
    "broadcast_buffers": False,
    "input_group_size": 2,
    "input_group_type": GroupType.ORTHOGONAL,
    "replica_groups": {},
    "device_iterations": 4,
    "output_mode": OutputMode.ALL,
    "output_period": 2,
    "seed": 7,
}


def test_every_option_is_mutated():
    assert set(OPTIONS) == {field.name for field in dataclasses.fields(StepConfig)}


def of_config(config):
    model = MODELS["dense"]
    module = model.fresh()
    rule = rule_for(module) if config.training else None
    programs = captured(module, model.batch(), config, rule).programs
    if config.trap_exceptions:
        programs = [
            passes.run(each, (passes.trap_exceptions.trap_exceptions,)) for each in programs
        ]
    else:
        programs = [passes.run(each) for each in programs]
    return key(programs, config), [code([each]) for each in programs]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_changes_the_key_or_no_code(name):
    base = {"replicas": 2} if name.startswith("input_group") else {}
    if name == "mean_strategy":
        base = {"gradient_accumulation": 2}
    before = of_config(StepConfig(**base))
    after = of_config(StepConfig(**{**base, name: OPTIONS[name]}))
    assert before[0] != after[0] or before[1] == after[1]
    compiles = name in StepConfig().compile_fields()
    assert (before[0] != after[0]) == compiles


# -- the machine ---------------------------------------------------------------------------------


@pytest.fixture
def program():
    return programs_of(times, 2.0)


def changed(program, change) -> bool:
    before = key(program)
    change()
    return key(program) != before


def test_the_capability_that_the_environment_lowers_counts(program, monkeypatch):
    """ATEN_CPU_CAPABILITY, which torch reads when it starts, chooses kernels."""

    def lower():
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")

    assert changed(program, lower)


def test_lowerings_asked_for_count(program, monkeypatch):
    assert changed(program, lambda: monkeypatch.setenv(candidates.ENVIRONMENT, "emitted"))


def test_the_default_type_counts():
    """Where integers meet a number, torch computes in it."""
    programs = captured(Uses(lambda x, c: (x.int() + c).float(), 0.1), (X,), INFERENCE).programs
    before = key(programs)
    torch.set_default_dtype(torch.float64)
    try:
        assert key(programs) != before
    finally:
        torch.set_default_dtype(torch.float32)


def test_flags_and_sources_of_kernels_count(program, monkeypatch):
    def change():
        monkeypatch.setattr(sources, "FLAGS", (*sources.FLAGS, "-O1"))
        sources.fingerprint.cache_clear()

    try:
        assert changed(program, change)
    finally:
        sources.fingerprint.cache_clear()


def test_objects_that_the_package_brings_count(program, monkeypatch, tmp_path):
    monkeypatch.setattr(packaged, "FOLDER", tmp_path)
    monkeypatch.setattr(packaged, "level", lambda: "x86-64-v3")
    folder = tmp_path / "x86-64-v3"
    folder.mkdir()
    keys = [key(program)]
    for text in ("made by one compiler", "made by another"):
        (folder / packaged.LIST).write_text(text)
        keys.append(key(program))
    assert len(set(keys)) == 3


def test_threads_change_no_code(program):
    before, threads = key(program), torch.get_num_threads()
    convolution = captured(torch.nn.Conv2d(3, 16, 3), (torch.ones(8, 3, 12, 12),), INFERENCE)
    texts = set()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            lowered = passes.run_only(convolution.programs[0], Emitted.passes)
            texts.add(planned_code(lowered).source.text)
            assert key(program) == before
    finally:
        torch.set_num_threads(threads)
    assert len(texts) == 1


# -- the compiler --------------------------------------------------------------------------------

FAKE = """#!/bin/sh
case "$*" in
  *--version*) echo "{version}" ;;
  *) echo "#define __VERSION__ \\"{macro}\\" $CPATH" ;;
esac
"""


@pytest.fixture
def as_compiler(monkeypatch, tmp_path):
    """Makes a script the compiler of this machine."""

    def install(version="g++ 12", macro="12.2", name="g++"):
        path = tmp_path / name
        path.write_text(FAKE.format(version=version, macro=macro))
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        compiler_of_cpu._identity.cache_clear()

    yield install
    compiler_of_cpu._identity.cache_clear()


def test_compilers_are_told_apart_by_version_macros_and_environment(as_compiler, monkeypatch):
    names = []
    for version, macro in itertools.product(("g++ 12", "clang++ 14"), ("12.2", "12.3")):
        as_compiler(version, macro)
        names.append(CPU.toolchain())
    monkeypatch.setenv("CPATH", "/other/headers")
    names.append(CPU.toolchain())
    assert len(set(names)) == 5
    assert names[0].endswith(" g++ 12")
    as_compiler("clang++ 14", "12.3", name="elsewhere")
    assert CPU.toolchain() == names[-1]  # its path does not matter


def test_compilers_are_part_of_the_key(program, as_compiler):
    as_compiler()
    assert changed(program, lambda: as_compiler(macro="12.3"))


def test_a_compiler_that_cannot_be_asked_has_a_name_of_its_own(as_compiler, tmp_path):
    as_compiler()
    (tmp_path / "g++").write_text("#!/bin/sh\nexit 1\n")
    assert CPU.toolchain() == f"unknown: {tmp_path / 'g++'}"


def test_a_real_compiler_is_asked_once_per_machine(monkeypatch, tmp_path):
    """A warm start takes no process to find its executable."""
    path = next(filter(None, map(os.path.realpath, ["/usr/bin/g++", "/usr/bin/clang++"])), "")
    if not compiler_of_cpu._tells_by_its_file(path):
        pytest.skip("no compiler that is a program")
    monkeypatch.setenv("CXX", path)
    monkeypatch.setattr(compiler_of_cpu, "cache_folder", lambda: tmp_path)
    asked = []
    tool_output = compiler_of_cpu.tool_output

    def counted(command):
        asked.append(command)
        return tool_output(command)

    monkeypatch.setattr(compiler_of_cpu, "tool_output", counted)
    names = []
    for _ in range(2):
        compiler_of_cpu._identity.cache_clear()
        names.append(CPU.toolchain())
    assert names[0] == names[1]
    assert len(asked) == 2
    compiler_of_cpu._identity.cache_clear()
    monkeypatch.setattr(sources, "has_openmp", lambda path: False)  # clang's is a package apart
    assert CPU.toolchain() != names[0]
    compiler_of_cpu._identity.cache_clear()


# -- without a compiler --------------------------------------------------------------------------


def other_toolchain(monkeypatch, name):
    monkeypatch.setattr(type(CPU), "toolchain", lambda self: name)


def test_code_of_another_compiler_has_another_key_but_runs_here(program, monkeypatch):
    other_toolchain(monkeypatch, "aaa g++ 12")
    stored = keys.key_parts(program, INFERENCE, CPU)
    for name in ("bbb g++ 13", ""):
        other_toolchain(monkeypatch, name)
        wanted = keys.key_parts(program, INFERENCE, CPU)
        assert keys.key_of(stored) != keys.key_of(wanted)
        said = f"toolchain: aaa g++ 12 there, {name} here"
        assert keys.why_parts_differ(stored, wanted) == [said]
        assert not keys.why_other(stored, wanted)


# -- sources -------------------------------------------------------------------------------------

# Modules that lowerings import, and that decide nothing about code.
NEUTRAL = {
    "abele",
    "abele.compilers",  # starts them
    "abele.contexts",
    "abele.errors",
    "abele.cpython",
    "abele.libraries",  # which frames are the user's
    "abele.locks",
    "abele.step",
    "abele.step.loss_scaling",  # names of counters
    "abele.systems",  # what the operating system lacks
    "abele.version",
    "abele.warn",
}
# Read by what writes code, and how it is in the key.
ENVIRONMENT = {
    "kernels/build.py": "XDG_CACHE_HOME: where kernels are kept; AR: links the same objects",
    "kernels/sources.py": "CXX: by the compiler's identity",
    "targets/__init__.py": "ABELE_TARGET: by the target's name",
    "targets/candidates.py": "ABELE_LOWERING: as asked",
    "targets/cpu/compiler.py": "what compilers read: by the compiler's identity",
    "targets/replay.py": "whether calls are replayed: the same code",
}


class Imports(ast.NodeVisitor):
    """The names that a file imports when it runs."""

    def __init__(self, path: Path):
        self.names = set[str]()
        self.visit(ast.parse(path.read_text()))

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.names |= {each.name for each in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.names |= {str(node.module), *(f"{node.module}.{each.name}" for each in node.names)}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_sources_that_write_code_are_hashed_with_all_that_they_import():
    files = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    seen, waiting = set[str](), ["abele.targets.cpu"]
    while waiting:
        name = waiting.pop()
        if name not in seen and name in files:
            seen.add(name)
            waiting += Imports(files[name]).names
    hashed = {each.removesuffix(".py") for each in candidates.DECIDING}
    outside = {each for each in seen if each.split(".")[1:2] and each.split(".")[1] not in hashed}
    kept = {each for each in outside if each.startswith("abele.storage")}
    assert outside - kept <= NEUTRAL


def test_every_variable_of_the_environment_that_lowerings_read_is_accounted_for():
    files = [
        path
        for part in candidates.DECIDING
        for path in ([PACKAGE / part] if part.endswith(".py") else (PACKAGE / part).rglob("*.py"))
    ]
    reading = {
        str(path.relative_to(PACKAGE))
        for path in files
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    }
    assert reading == set(ENVIRONMENT)


# -- with the compiler ---------------------------------------------------------------------------


class Masked(torch.nn.Module):
    """Attention scores under a mask that is neither a parameter nor a buffer."""

    def __init__(self, mask):
        super().__init__()
        self._mask = mask

    def forward(self, x):
        return F.relu(x * self._mask) + (x - self._mask) * 0.5


SCORES = torch.linspace(-3, 3, 36).reshape(6, 6)


def built(mask, cache):
    module = Masked(mask)
    programs = captured(module, (SCORES,), INFERENCE).programs
    made, record = build(programs, INFERENCE, target=CPU, cache=cache)
    return made, record, module(SCORES)


@pytest.mark.compiler
def test_masks_of_two_layouts_do_not_share_code(isolated_cache, monkeypatch):
    monkeypatch.setenv(candidates.ENVIRONMENT, "emitted")
    found = []
    for mask in (TRIANGLE, turned(TRIANGLE), TRIANGLE, turned(TRIANGLE)):
        made, record, expected = built(mask, isolated_cache)
        (actual,) = made.compiled["forward"].run([SCORES])
        torch.testing.assert_close(actual, expected)
        found.append(record.cache)
    assert found == ["miss", "miss", "hit", "hit"]


@pytest.mark.compiler
def test_a_file_keeps_the_layout_of_a_mask(tmp_path, monkeypatch):
    monkeypatch.setenv(candidates.ENVIRONMENT, "emitted")
    made, _, expected = built(turned(TRIANGLE), None)
    captured_here = captured(Masked(turned(TRIANGLE)), (SCORES,), INFERENCE)
    content, members = pack(captured_here, made)
    write(tmp_path / "file", "test", content, members)
    with Container(tmp_path / "file", "test") as file:
        programs = captured_in(file, file.content).programs
        again, record = restore(file, file.content, programs, INFERENCE, target=CPU)
    (actual,) = again.compiled["forward"].run([SCORES])
    assert record.cache == "hit"
    torch.testing.assert_close(actual, expected)


@pytest.mark.compiler
def test_without_a_compiler_code_of_any_compiler_is_found(isolated_cache, monkeypatch):
    monkeypatch.setenv(candidates.ENVIRONMENT, "emitted")
    first, _, expected = built(TRIANGLE, isolated_cache)
    monkeypatch.setenv("CXX", "/no/compiler")
    again, record, _ = built(TRIANGLE, ExecutableCache(isolated_cache.folder))
    assert (record.cache, record.executable, again.key) == ("hit", first.key, first.key)
    torch.testing.assert_close(again.compiled["forward"].run([SCORES])[0], expected)
