"""Arguments as JSON: with the function's reference, what a stored job is made of.

Owns both ways. Nothing is pickled; no class is ever looked up by its name. Knows no store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from .errors import JobDefinitionError
from .references import check_call, default_id, func_ref, resolve_ref

__all__ = [
    "check_call",
    "decode_args",
    "default_id",
    "encode_args",
    "func_ref",
    "resolve_ref",
]

_DEEPEST = 100
_TAG = "$type"
# Beyond this a reader that takes JSON numbers for doubles would round.
_EXACT_INT = 2**53 - 1
# Python refuses to read an int of more than 4300 digits; this is about 4000.
_MOST_BITS = 13_300


def encode_args(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as ``{"args": [...], "kwargs": {...}}``, ready for JSON.

    None, bools, ints, finite floats, texts, lists and dicts with texts as keys are themselves. Tuples,
    datetimes, dates, times, timedeltas, UUIDs, finite decimals and very large ints are tagged:
    ``{"$type": "date", "value": "2024-05-01"}``; a dict that has a key ``$type`` of its own is tagged too.
    Types count exactly: an enum, a named tuple or another subclass would come back as something else.

    A time zone comes back as ``ZoneInfo`` when it has an IANA name, else as its fixed offset.

    :raises JobDefinitionError: naming the first argument that is anything else.
    """
    return {
        "args": [_encode(item, f"args[{index}]", ()) for index, item in enumerate(args)],
        "kwargs": {key: _encode(item, f"kwargs[{key!r}]", ()) for key, item in _texts(kwargs, "kwargs")},
    }


def decode_args(call: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return ``(args, kwargs)`` of what :func:`encode_args` gave.

    :raises JobDefinitionError: when it is damaged or was written by a newer version.
    """
    args, kwargs = (call.get("args"), call.get("kwargs")) if isinstance(call, Mapping) else (None, None)
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise JobDefinitionError("the stored arguments are damaged: args is no list or kwargs no dict")
    try:
        return tuple(_decode(item) for item in args), {key: _decode(item) for key, item in kwargs.items()}
    except RecursionError:
        raise JobDefinitionError(f"the stored arguments are nested deeper than {_DEEPEST} levels") from None


def _texts(items: Mapping[Any, Any], path: str) -> list[tuple[str, Any]]:
    for key in items:
        if type(key) is not str:
            raise JobDefinitionError(
                f"{path} has the key {key!r} of type {type(key).__qualname__}, which cannot be stored: "
                f"keys are texts"
            )
        _check_text(key, f"a key of {path}")
    return list(items.items())


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise JobDefinitionError(f"{path} is no valid Unicode text (it holds a lone surrogate)") from None


def _encode(value: Any, path: str, outer: tuple[int, ...]) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        _check_text(value, path)
        return value
    if kind is int:
        return _encode_int(value, path)
    if kind is float:
        if not math.isfinite(value):
            raise JobDefinitionError(f"{path} is {value!r}, which JSON does not have")
        return value
    if kind in (list, tuple, dict):
        return _encode_container(value, path, outer)
    encoder = _ENCODERS.get(kind)
    if encoder is None:
        raise JobDefinitionError(
            f"{path} is of type {kind.__module__}.{kind.__qualname__}, which cannot be stored. Hand over "
            f"plain values (such as the id of an object) and make the rest in the job"
        )
    return encoder(value, path)


def _encode_int(value: int, path: str) -> Any:
    if abs(value) <= _EXACT_INT:
        return value
    if value.bit_length() > _MOST_BITS:
        raise JobDefinitionError(f"{path} is an int of {value.bit_length()} bits, too large to be stored")
    return {_TAG: "int", "value": str(value)}


def _encode_container(value: Any, path: str, outer: tuple[int, ...]) -> Any:
    if id(value) in outer:
        raise JobDefinitionError(f"{path} contains itself, which cannot be stored")
    if len(outer) >= _DEEPEST:
        raise JobDefinitionError(f"{path[:80]}… is nested deeper than {_DEEPEST} levels")
    outer = (*outer, id(value))
    if type(value) is dict:
        items = {key: _encode(item, f"{path}[{key!r}]", outer) for key, item in _texts(value, path)}
        return {_TAG: "dict", "value": items} if _TAG in items else items
    encoded = [_encode(item, f"{path}[{index}]", outer) for index, item in enumerate(value)]
    return encoded if type(value) is list else {_TAG: "tuple", "value": encoded}


def _iana_zone(zone: tzinfo | None) -> ZoneInfo | None:
    # ZoneInfo calls it key, pytz zone.
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if not isinstance(name, str):
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return None


def _encode_datetime(value: datetime, path: str) -> dict[str, Any]:
    zone = _iana_zone(value.tzinfo)
    if zone is not None:
        # pytz tells the two 02:30s of an autumn night apart by the offset, never by fold.
        for fold in (value.fold, 1 - value.fold):
            same = value.replace(tzinfo=zone, fold=fold)
            if same.utcoffset() == value.utcoffset():
                return _with_fold("datetime", value.replace(tzinfo=None).isoformat(), fold) | {
                    "zone": zone.key
                }
    offset = value.utcoffset()
    value = value.replace(tzinfo=None if offset is None else timezone(offset))
    return _with_fold("datetime", value.isoformat(), value.fold)


def _encode_time(value: time, path: str) -> dict[str, Any]:
    zone = _iana_zone(value.tzinfo)
    if zone is not None:
        return _with_fold("time", value.replace(tzinfo=None).isoformat(), value.fold) | {"zone": zone.key}
    if value.tzinfo is not None and value.utcoffset() is None:
        raise JobDefinitionError(
            f"{path} is a time in {value.tzinfo!r}, a zone without a name to store it by"
        )
    return _with_fold("time", value.isoformat(), value.fold)


def _with_fold(tag: str, value: str, fold: int) -> dict[str, Any]:
    return {_TAG: tag, "value": value, **({"fold": 1} if fold else {})}


def _encode_decimal(value: Decimal, path: str) -> dict[str, Any]:
    if not value.is_finite():
        raise JobDefinitionError(f"{path} is {value!r}, which cannot be stored")
    return {_TAG: "decimal", "value": str(value)}


_ENCODERS: dict[type, Callable[[Any, str], dict[str, Any]]] = {
    datetime: _encode_datetime,
    date: lambda value, path: {_TAG: "date", "value": value.isoformat()},
    time: _encode_time,
    timedelta: lambda value, path: {
        _TAG: "timedelta",
        "value": [value.days, value.seconds, value.microseconds],
    },
    UUID: lambda value, path: {_TAG: "uuid", "value": str(value)},
    Decimal: _encode_decimal,
}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _decode(item) for key, item in value.items()}
    tag = value[_TAG]
    decoder = _DECODERS.get(tag) if isinstance(tag, str) else None
    if decoder is None:
        raise JobDefinitionError(
            f"the stored arguments hold a value of the kind {tag!r}, written by a newer version of "
            f"Flask-SingleJob"
        )
    try:
        return decoder(value["value"], value)
    except JobDefinitionError:
        raise
    except (
        AttributeError,
        InvalidOperation,
        LookupError,
        OSError,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:
        raise JobDefinitionError(f"the stored arguments hold a {tag} that cannot be read: {error}") from error


def _zoned(moment: Any, tagged: Mapping[str, Any]) -> Any:
    if "zone" in tagged:
        moment = moment.replace(tzinfo=ZoneInfo(tagged["zone"]))
    return moment.replace(fold=tagged.get("fold", 0))


_DECODERS: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "dict": lambda value, tagged: {key: _decode(item) for key, item in value.items()},
    "tuple": lambda value, tagged: tuple(_decode(item) for item in value),
    "int": lambda value, tagged: int(value),
    "datetime": lambda value, tagged: _zoned(datetime.fromisoformat(value), tagged),
    "date": lambda value, tagged: date.fromisoformat(value),
    "time": lambda value, tagged: _zoned(time.fromisoformat(value), tagged),
    "timedelta": lambda value, tagged: timedelta(days=value[0], seconds=value[1], microseconds=value[2]),
    "uuid": lambda value, tagged: UUID(value),
    "decimal": lambda value, tagged: Decimal(value),
}
