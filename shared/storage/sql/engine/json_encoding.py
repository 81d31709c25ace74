"""JSON text for columns and parameters, by an encoder that is made once.

``JSONEncoder.encode`` makes the encoder in C again for each value, which takes longer than most values of ours do.
"""

import json
from collections.abc import Callable
from typing import Any, Final


def encoder(*, is_ascii: bool) -> Callable[[object], str]:
    """Return a function that writes a value as short JSON text, as ``json.dumps`` does.

    It raises ValueError for what is not a number, TypeError for what JSON has not, RecursionError for a circle.
    """
    slow = json.JSONEncoder(ensure_ascii=is_ascii, allow_nan=False, separators=(",", ":"))
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return slow.encode
    text_of = json.encoder.encode_basestring_ascii if is_ascii else json.encoder.encode_basestring
    fast = make(None, slow.default, text_of, None, ":", ",", False, False, False)

    def encode(value: object) -> str:
        return "".join(fast(value, 0))

    return encode


encode: Final = encoder(is_ascii=False)
encode_ascii: Final = encoder(is_ascii=True)
