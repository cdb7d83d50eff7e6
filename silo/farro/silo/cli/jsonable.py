"""Any value that grains exchange, as JSON for people and shell scripts.  One way: it loses types."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any


def jsonable(value: Any) -> Any:
    """``value`` of dicts, lists, texts, numbers, booleans and None only.

    Dates and times are ISO text, durations seconds, bytes base64, sets and tuples lists, NaN and infinities
    text; anything else (decimals, UUIDs, references to grains) is what ``str`` makes of it.
    """
    match value:
        case None | bool() | str():
            return value
        case Enum():
            return jsonable(value.value)
        case int():
            return int(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {_key(key): jsonable(each) for key, each in value.items()}
        case list() | tuple():
            return [jsonable(each) for each in value]
        case set() | frozenset():
            return sorted((jsonable(each) for each in value), key=str)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(getattr(value, "grain_id", value))


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(jsonable(key))
