"""How many examples a property is held to: all of them when others are looked for, a fourth in a usual run."""

from hypothesis import HealthCheck, settings

PART = 4 if settings().derandomize else 1
"""Into how many parts the examples are divided; one of them is tried."""


def fixed(examples: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples // PART, suppress_health_check=slow)
