"""How many examples a property is held to, the same ones in every run: a failure is a change of ours, never luck."""

from hypothesis import HealthCheck, settings


def fixed(examples: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(derandomize=True, database=None, deadline=None, max_examples=examples, suppress_health_check=slow)
