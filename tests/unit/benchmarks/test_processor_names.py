"""What records call a processor: two that differ in speed do not share a name."""

import pytest
from benchmarks import harness


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (
            "cpu family\t: 26\nmodel name\t: AMD EPYC\nflags\t: avx2 avx512f",
            "AMD EPYC of family 26 (avx512f)",
        ),
        ("cpu family\t: 25\nmodel name\t: AMD EPYC 7763\nflags\t: avx2", "AMD EPYC 7763 (avx2)"),
        ("model name\t: AMD EPYC\nflags\t: sse2", "AMD EPYC (no AVX2)"),
        ("CPU part\t: 0xd0c", "unknown (no AVX2)"),
    ],
)
def test_generations_of_a_processor_differ(fields, name):
    assert harness.cpu_name(f"processor\t: 0\n{fields}\n\nprocessor\t: 1\n") == name
