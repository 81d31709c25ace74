"""Which messages on the queue are ours."""

from typing import Any

import pytest

from soong.worker.bootstrap import is_dispatch

NOTHING_MORE = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def test_a_dispatch_as_it_is_sent_is_ours() -> None:
    assert is_dispatch({"eta": None, "expires": None}, [["disp_1"], {}, NOTHING_MORE])


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        [["disp_1"], {}],
        [[], {}, {}],
        [[1], {}, {}],
        [["a", "b"], {}, {}],
        [["disp_1"], {"a": 1}, {}],
        [["disp_1"], {}, {**NOTHING_MORE, "callbacks": [{"task": "os.system"}]}],
        {"args": ["disp_1"]},
    ],
)
def test_a_message_of_another_form_is_not(payload: Any) -> None:
    assert not is_dispatch({}, payload)
