"""Settings that tests with random examples share: the same examples in every run, and no files."""

from hypothesis import HealthCheck, settings

_PROFILE = "tests"


def load_profile() -> None:
    """Make these the settings of all such tests; a busy machine is no reason to fail."""
    settings.register_profile(
        _PROFILE,
        deadline=None,
        derandomize=True,
        database=None,
        # The fixtures of tests/conftest.py look at the environment once per test, which is enough.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile(_PROFILE)


def examples(count: int) -> settings:
    """Return settings for ``count`` examples."""
    return settings(max_examples=count)
