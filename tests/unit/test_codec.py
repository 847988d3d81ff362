"""Functions and arguments of stored jobs come back as they were, or are refused at the call."""

from __future__ import annotations

import enum
import functools
import json
import subprocess
import sys
import types
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_singlejob.codec import check_call, decode_args, default_id, encode_args, func_ref, resolve_ref
from flask_singlejob.errors import JobDefinitionError

ROOT = Path(__file__).resolve().parents[2]


# -- what can be named ---------------------------------------------------------------------------


def report(day: date, *, copies: int = 1) -> None:
    """Stand for a job."""


def _wraps(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


@_wraps
def decorated(day: date) -> None:
    """Stand for a job under a decorator."""


undecorated = decorated.__wrapped__  # type: ignore[attr-defined]


class Base:
    @staticmethod
    def static() -> None: ...

    @classmethod
    def of_class(cls) -> type:
        return cls

    @staticmethod
    def __hidden() -> None: ...

    hidden = __hidden

    def method(self) -> None: ...

    def __call__(self) -> None: ...


class Derived(Base):
    pass


class Counts(Counter[str]):
    pass


class Day(date):
    pass


def nested() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


an_instance = Base()
a_lambda = lambda: None  # noqa: E731
a_number = 3


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (report, "report"),
        (decorated, "decorated"),
        (Base.static, "Base.static"),
        (Base.of_class, "Base.of_class"),
        (Derived.of_class, "Derived.of_class"),
        (Counts.fromkeys, "Counts.fromkeys"),
        (Day.fromisoformat, "Day.fromisoformat"),
        (Base, "Base"),
    ],
)
def test_reference_leads_back_to_the_same_function(func: Callable[..., Any], name: str) -> None:
    ref = func_ref(func, registry={})
    assert ref == f"{__name__}:{name}"
    assert resolve_ref(ref, registry={}) == func
    assert default_id(func) == f"{__name__}.{name}"


def test_inherited_class_method_keeps_its_class() -> None:
    assert resolve_ref(func_ref(Derived.of_class, registry={}), registry={})() is Derived


def test_function_of_c_can_be_referred_to() -> None:
    import time as clock

    assert resolve_ref(func_ref(clock.sleep, registry={}), registry={}) is clock.sleep


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (a_lambda, "a lambda"),
        (nested(), "inside another function"),
        (functools.partial(report, date.min), "a partial of"),
        (an_instance.method, "bound to an instance of Base"),
        (an_instance, "an instance of"),
        ([].append, "bound to an instance of list"),
        (undecorated, "did a decorator wrap it"),
        (Base.hidden, "no"),
    ],
)
def test_function_that_cannot_be_found_again_is_refused_with_what_to_do(
    func: Callable[..., Any], reason: str
) -> None:
    with pytest.raises(JobDefinitionError) as caught:
        func_ref(func, registry={})
    assert reason in str(caught.value)
    assert "register(func, name)" in str(caught.value)
    assert "args=" in str(caught.value)


@pytest.mark.parametrize(
    "func", [a_lambda, nested(), functools.partial(report, date.min), an_instance.method, an_instance]
)
def test_function_without_a_name_of_its_own_needs_an_id(func: Callable[..., Any]) -> None:
    with pytest.raises(JobDefinitionError, match=r'needs an id: give id="\.\.\."'):
        default_id(func)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(JobDefinitionError, match="cannot be called"):
        func_ref(3, registry={})  # type: ignore[arg-type]


def test_registered_name_serves_where_no_module_leads_back() -> None:
    inner = nested()
    registry = {"inner": inner, "bound": an_instance.method}
    assert func_ref(inner, registry=registry) == "inner"
    assert func_ref(an_instance.method, registry=registry) == "bound"
    assert resolve_ref("inner", registry=registry) is inner
    assert func_ref(report, registry={"r": report}) == f"{__name__}:report"


def test_default_id_of_more_than_255_characters_is_refused() -> None:
    func = types.FunctionType(report.__code__, {})
    func.__module__ = "m"
    func.__qualname__ = "q" * 253
    assert len(default_id(func)) == 255
    func.__qualname__ = "q" * 254
    with pytest.raises(JobDefinitionError, match="256 characters"):
        default_id(func)


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("no_such_module_here:f", "no module 'no_such_module_here'"),
        ("json.no_such_module:f", "no module 'json.no_such_module'"),
        ("json:no_such_name", "has no no_such_name"),
        ("json:decoder", "cannot be called"),
        (f"{__name__}:a_number", "cannot be called"),
        ("nightly", "no function is registered as 'nightly'"),
        ("", "no function is registered"),
        ("json:", "plain identifiers"),
        (":loads", "plain identifiers"),
        ("json:loads()", "plain identifiers"),
        ("json:nested.<locals>.inner", "plain identifiers"),
        ("..json:loads", "plain identifiers"),
        (f"{__name__}:report.__globals__.get", "plain identifiers"),
    ],
)
def test_reference_that_leads_nowhere_says_where_it_ends(ref: str, reason: str) -> None:
    with pytest.raises(JobDefinitionError) as caught:
        resolve_ref(ref, registry={})
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("import no_such_dependency", "No module named 'no_such_dependency'"),
        ("def", "SyntaxError"),
    ],
)
def test_module_that_fails_to_import_is_named_with_its_reason(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_jobs.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(JobDefinitionError) as caught:
        resolve_ref("broken_jobs:f", registry={})
    assert "broken_jobs" in str(caught.value)
    assert reason in str(caught.value)
    assert caught.value.__cause__ is not None


SCRIPT = """
import sys
print("the script runs")
from flask_singlejob.codec import default_id, func_ref, resolve_ref
from flask_singlejob.errors import JobDefinitionError
def job(): ...
class Jobs:
    @classmethod
    def of_class(cls): ...
print(default_id(job))
try:
    for func in (job, Jobs.of_class):
        ref = func_ref(func, registry={})
        print(ref, resolve_ref(ref, registry={}) == func)
except JobDefinitionError as error:
    print(error)
"""


def run_script(tmp_path: Path, *arguments: str, name: str = "shop.py") -> list[str]:
    script = tmp_path / name
    script.parent.mkdir(exist_ok=True)
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_script_that_runs_is_named_by_its_file_and_not_run_twice(tmp_path: Path) -> None:
    lines = run_script(tmp_path, "shop.py")
    assert lines == ["the script runs", "shop.job", "shop:job True", "shop:Jobs.of_class True"]


def test_module_that_runs_as_script_is_named_as_others_import_it(tmp_path: Path) -> None:
    lines = run_script(tmp_path, "-m", "pack.shop", name="pack/shop.py")
    assert lines == ["the script runs", "shop.job", "pack.shop:job True", "pack.shop:Jobs.of_class True"]


def test_script_that_no_other_process_can_import_is_refused(tmp_path: Path) -> None:
    lines = run_script(tmp_path, "my-shop.py", name="my-shop.py")
    assert lines[:2] == ["the script runs", "my-shop.job"]
    assert "no other process can import" in lines[2]


# -- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1,), {}), ((), {"day": 1}), ((1,), {"copies": 2}), ([1], {"copies": 2})]
)
def test_call_that_fits_is_accepted(args: Any, kwargs: dict[str, Any]) -> None:
    check_call(report, args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "'day'"),
        ((1, 2), {}, "too many positional"),
        ((1,), {"copy": 1}, "'copy'"),
        ((1,), {"day": 1}, "'day'"),
    ],
)
def test_call_that_does_not_fit_names_the_argument(args: Any, kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises(JobDefinitionError) as caught:
        check_call(report, args, kwargs)
    assert named in str(caught.value)
    assert "report" in str(caught.value)


def test_what_counts_for_a_call_is_the_outermost_wrapper() -> None:
    check_call(decorated, (1, 2, 3), {})
    with pytest.raises(JobDefinitionError):
        check_call(undecorated, (1, 2, 3), {})


def test_builtin_that_tells_no_signature_is_left_to_itself() -> None:
    check_call(dict.fromkeys, (1, 2), {})
    check_call(max, (), {})


# -- arguments -----------------------------------------------------------------------------------

zones: st.SearchStrategy[tzinfo | None] = st.one_of(
    st.none(),
    st.sampled_from([timezone.utc, ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns")]),
    st.builds(
        lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(min_value=-1439, max_value=1439)
    ),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.datetimes(timezones=zones, allow_imaginary=True),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False),
)
keys = st.one_of(st.just("$type"), st.just("value"), texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=12,
)


def through_json(args: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return decode_args(json.loads(json.dumps(encode_args(args, kwargs), allow_nan=False)))


def exactly(value: Any) -> Any:
    """Return a form in which two values are equal only if they are the same to the last detail."""
    if isinstance(value, (list, tuple)):
        return type(value), [exactly(item) for item in value]
    if isinstance(value, dict):
        return dict, [(key, exactly(item)) for key, item in value.items()]
    if isinstance(value, (datetime, time)):
        # repr tells the fold and the zone.
        return type(value), repr(value)
    return type(value), repr(value)


@given(st.lists(values, max_size=3).map(tuple), st.dictionaries(keys, values, max_size=3))
def test_arguments_come_back_exactly(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    found_args, found_kwargs = through_json(args, kwargs)
    assert exactly(found_args) == exactly(args)
    assert exactly(found_kwargs) == exactly(kwargs)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2024, 10, 27, 2, 30, fold=1),
        time(2, 30, 0, 7, fold=1),
        time(2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        time(2, 30, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
        timedelta(days=-1, microseconds=1),
        2**53,
        -(2**70),
        Decimal("1E+400"),
        Decimal("-0.00"),
        -0.0,
        {"$type": "date", "value": "2024-05-01"},
        {"$type": {"$type": ("tuple",)}},
    ],
)
def test_value_with_a_twist_comes_back_exactly(value: Any) -> None:
    (found,), _ = through_json((value,), {})
    assert exactly(found) == exactly(value)


def test_written_form_is_the_documented_one() -> None:
    assert encode_args((date(2024, 5, 1), (1,)), {"wait": timedelta(hours=1)}) == {
        "args": [
            {"$type": "date", "value": "2024-05-01"},
            {"$type": "tuple", "value": [1]},
        ],
        "kwargs": {"wait": {"$type": "timedelta", "value": [0, 3600, 0]}},
    }


def test_pytz_zone_comes_back_as_the_same_zone_and_instant() -> None:
    pytz = pytest.importorskip("pytz")
    berlin = pytz.timezone("Europe/Berlin")
    for is_dst in (True, False):
        moment = berlin.localize(datetime(2024, 10, 27, 2, 30), is_dst=is_dst)
        (found,), _ = through_json((moment,), {})
        assert found.astimezone(timezone.utc) == moment.astimezone(timezone.utc)
        assert found.tzinfo == ZoneInfo("Europe/Berlin")


def test_zone_without_a_name_comes_back_as_its_offset() -> None:
    class Own(tzinfo):
        def utcoffset(self, moment: datetime | None) -> timedelta | None:
            return None if moment is None else timedelta(hours=2)

        def dst(self, moment: datetime | None) -> timedelta | None:
            return None

        def tzname(self, moment: datetime | None) -> str | None:
            return None

    (found,), _ = through_json((datetime(2024, 5, 1, tzinfo=Own()),), {})
    assert found.isoformat() == "2024-05-01T00:00:00+02:00"
    with pytest.raises(JobDefinitionError, match=r"args\[0\] is a time in"):
        encode_args((time(1, tzinfo=Own()),), {})


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Decimal("NaN"), "NaN"),
        (10**4200, "too large"),
        ({1, 2}, "builtins.set"),
        (b"x", "builtins.bytes"),
        (object(), "builtins.object"),
        (Colour.RED, "Colour"),
        (Level.LOW, "Level"),
        (Text("x"), "Text"),
        (Pair(1, 2), "Pair"),
        (OrderedDict(a=1), "OrderedDict"),
        (report, "function"),
        ({1: 2}, "key 1 of type int"),
        ({None: 2}, "of type NoneType"),
        ("\ud800", "surrogate"),
        ({"\ud800": 1}, "surrogate"),
    ],
)
def test_what_would_not_come_back_is_refused_at_the_call_by_its_path(value: Any, named: str) -> None:
    for args, kwargs, path in (
        ((value,), {}, "args[0]"),
        ((), {"when": value}, "kwargs['when']"),
        ((1, {"x": [0, value]}), {}, "args[1]['x'][1]"),
    ):
        with pytest.raises(JobDefinitionError) as caught:
            encode_args(args, kwargs)
        assert path in str(caught.value)
        assert named in str(caught.value)


def test_keyword_that_is_no_text_is_refused() -> None:
    with pytest.raises(JobDefinitionError, match="kwargs has the key 1"):
        encode_args((), {1: 2})  # type: ignore[dict-item]


def test_what_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append({"again": circle})
    with pytest.raises(JobDefinitionError, match=r"args\[0\]\[0\]\['again'\] contains itself"):
        encode_args((circle,), {})


def test_what_is_only_shared_is_not_taken_for_a_circle() -> None:
    shared = [1]
    assert through_json(([shared, shared], shared), {})[0] == ([[1], [1]], [1])


def test_what_is_nested_too_deep_is_refused_both_ways() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert through_json((deep,), {})[0] == (deep,)
    with pytest.raises(JobDefinitionError, match="deeper than 100"):
        encode_args(([deep],), {})
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(JobDefinitionError, match="deeper than 100"):
        decode_args({"args": [deep], "kwargs": {}})


def test_value_of_a_newer_version_is_told_as_such() -> None:
    for tag in ("colour", 3, None, ["x"]):
        with pytest.raises(JobDefinitionError, match="newer version"):
            decode_args({"args": [{"$type": tag, "value": 1}], "kwargs": {}})


@pytest.mark.parametrize(
    "call",
    [
        {},
        [],
        {"args": {}, "kwargs": {}},
        {"args": [], "kwargs": []},
        {"args": [{"$type": "date"}], "kwargs": {}},
        {"args": [{"$type": "date", "value": "soon"}], "kwargs": {}},
        {"args": [{"$type": "date", "value": 3}], "kwargs": {}},
        {"args": [{"$type": "datetime", "value": "2024-01-01", "zone": "Mars/Olympus"}], "kwargs": {}},
        {"args": [{"$type": "datetime", "value": "2024-01-01", "zone": 3}], "kwargs": {}},
        {"args": [{"$type": "datetime", "value": "2024-01-01", "fold": 2}], "kwargs": {}},
        {"args": [{"$type": "timedelta", "value": [1]}], "kwargs": {}},
        {"args": [{"$type": "timedelta", "value": [10**12, 0, 0]}], "kwargs": {}},
        {"args": [{"$type": "decimal", "value": "x"}], "kwargs": {}},
        {"args": [{"$type": "uuid", "value": "x"}], "kwargs": {}},
        {"args": [{"$type": "int", "value": "x"}], "kwargs": {}},
        {"args": [{"$type": "tuple", "value": 3}], "kwargs": {}},
        {"args": [{"$type": "dict", "value": 3}], "kwargs": {}},
    ],
)
def test_damaged_arguments_are_an_error_of_our_own(call: Any) -> None:
    with pytest.raises(JobDefinitionError):
        decode_args(call)


def test_uuid_of_every_version_comes_back() -> None:
    given_id = uuid4()
    (found,), _ = through_json((given_id,), {})
    assert type(found) is UUID
    assert found == given_id
