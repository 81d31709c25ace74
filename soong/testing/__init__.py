"""Tests of plans and agents: what a test imports. The fixture ``soong_service`` comes by itself (a pytest plugin)."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from soong.testing.answers import Answerer, answer
    from soong.testing.bootstrap import LocalService
    from soong.testing.clock import MovableClock
    from soong.testing.models import ScriptedAnswers, call, scripted_model

__all__ = ["Answerer", "LocalService", "MovableClock", "ScriptedAnswers", "answer", "call", "scripted_model"]
_MODULES = dict(zip(__all__, ("answers", "bootstrap", "clock", "models", "answers", "models", "models"), strict=True))


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'soong.testing' has no attribute {name!r}")
    return getattr(import_module(f"soong.testing.{_MODULES[name]}"), name)
