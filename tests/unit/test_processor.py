"""What the processor is called, and what code made for it may use."""

import pytest

from abele import processor
from abele.kernels import build, sources
from abele.targets import get_target
from abele.targets.cpu.compiler import instruction_set

X86 = """processor\t: {number}
model name\t: AMD EPYC
cpu MHz\t\t: {clock}
flags\t\t: fpu {flags}
"""
ARM = "processor\t: 0\nFeatures\t: fp {flags}\nCPU part\t: 0xd40\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes another machine of this one, as its system describes it."""
    monkeypatch.setattr(processor, "_DESCRIPTION", tmp_path / "cpuinfo")

    def become(text):
        (tmp_path / "cpuinfo").write_text(text)
        processor._described.cache_clear()
        instruction_set.cache_clear()

    yield become
    processor._described.cache_clear()
    instruction_set.cache_clear()


def x86(flags, clock=2000):
    return "\n".join(X86.format(flags=flags, clock=clock, number=i) for i in range(2))


def test_the_name_is_that_of_the_first_processor(machine):
    machine(x86("avx2"))
    assert processor.name() == "AMD EPYC"


def test_other_systems_than_linux_have_a_name_and_a_hash(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "_DESCRIPTION", tmp_path / "missing")
    processor._described.cache_clear()
    assert processor.name()
    assert len(processor.instructions()) == 12


@pytest.mark.parametrize("text", [x86, lambda flags: ARM.format(flags=flags)], ids=["x86", "ARM"])
def test_instructions_that_torch_does_not_name_count(machine, text):
    machine(text("gfni avx2"))
    with_gfni = processor.instructions()
    machine(text("avx2"))
    assert processor.instructions() != with_gfni


def test_clock_and_order_do_not_count(machine):
    machine(x86("avx2 bmi1", clock=2000))
    first = processor.instructions()
    machine(x86("bmi1 avx2", clock=3100))
    assert processor.instructions() == first


def test_executables_and_kernels_of_another_processor_have_other_names(machine):
    """Below the levels that kernels are compiled for, it is what ``-march=native`` means."""
    target, names = get_target("cpu"), []
    for flags in ("avx2 gfni", "avx2"):
        machine(x86(flags))
        names.append((target.describe(), build._places("g++", instruction_set())[:2]))
    (description, library), (other_description, other_library) = names
    assert description["isa"] != other_description["isa"]
    assert not set(library) & set(other_library)


def test_processors_of_one_level_share_kernels_but_no_executables(machine, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    target, names = get_target("cpu"), []
    for further in ("gfni", ""):
        machine(x86(f"{further} {' '.join(sources.LEVELS['x86-64-v3'])}"))
        names.append((target.describe()["isa"], build._places("g++", instruction_set())))
    (isa, kernels), (other_isa, other_kernels) = names
    assert isa != other_isa
    assert kernels == other_kernels


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "many\n"}, None),
        ({"jobs/own/cpu.max": "max 100000\n", "jobs/cpu.max": "50000 100000\n"}, 0.5),
        ({"jobs/cpu.max": "50000 100000\n", "cpu.max": "20000 100000\n"}, 0.2),
        ({"jobs/other/cpu.max": "50000 100000\n"}, None),
        ({}, None),
    ],
)
def test_the_quota_is_that_of_the_container(files, expected, tmp_path, monkeypatch):
    (tmp_path / "groups").write_text("5:memory:/\n1:cpu,cpuacct:/outside\n0::/jobs/own\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(processor, "_GROUP", tmp_path)
    monkeypatch.setattr(processor, "_OWN_GROUPS", tmp_path / "groups")
    assert processor.quota() == expected
