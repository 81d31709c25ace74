"""A process, and all that it starts, to which the system refuses ``unshare``, as a container's seccomp profile does."""

import ctypes
import platform

_NUMBERS = {"x86_64": 272, "aarch64": 97}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x00050001, 0x7FFF0000
"""EPERM; let it pass."""


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction))]


def refuse() -> None:
    """Refuse it from now on. Source: seccomp(2)."""
    steps = (_Instruction * 4)(
        _Instruction(_LOAD, 0, 0, 0),
        _Instruction(_JUMP_IF_EQUAL, 0, 1, _NUMBERS[platform.machine()]),
        _Instruction(_RETURN, 0, 0, _REFUSE),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(_Program(4, steps))) == 0
