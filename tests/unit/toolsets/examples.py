"""How many examples a property is held to."""

from hypothesis import HealthCheck, settings


def fixed(examples: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, suppress_health_check=slow)
