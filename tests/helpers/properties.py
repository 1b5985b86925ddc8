"""What tests with random examples share: the same examples in every run, and no files."""

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """Settings for this many examples."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        # The fixtures of tests/conftest.py look at the environment once per test, which is enough.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
