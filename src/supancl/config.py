"""Frozen configuration sections: checked values, dotted overrides, JSON in both directions.

A section is a frozen dataclass whose annotations say which values are valid; `checked` enforces them. So a range is
written once, next to its field.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from supancl.errors import BadInput, did_you_mean


@dataclass(frozen=True)
class Within:
    """A closed range; None leaves that end open."""

    low: float | None = None
    high: float | None = None
    exclusive_low: bool = False

    def admits(self, value: float) -> bool:
        is_above = self.low is None or value > self.low or (value == self.low and not self.exclusive_low)
        return is_above and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"must lie in {'(' if self.exclusive_low else '['}{self.low:g}, {self.high:g}]"
        if self.low is not None:
            return f"must be {'above' if self.exclusive_low else 'at least'} {self.low:g}"
        return f"must be at most {self.high:g}"


Fraction = Annotated[float, Within(0, 1)]
NotNegative = Annotated[float, Within(0, None)]
Positive = Annotated[float, Within(0, None, exclusive_low=True)]
LARGEST_COUNT = 2**31 - 1  # what every library takes
Count = Annotated[int, Within(1, None), Within(None, LARGEST_COUNT)]
Natural = Annotated[int, Within(0, None), Within(None, LARGEST_COUNT)]

Section = TypeVar("Section")

# Marks of fields: `marked(default, ...)`
# changes how steps run and failures are handled, not what a step computes
MAY_CHANGE_ON_RESUME = "may change on resume"
AUTOMATIC = "chosen automatically"  # the default means: the best value here; a run keeps the value that was chosen
INCIDENTAL = "ignored when comparing runs"  # its seed, where and how fast it ran, how often it logged or saved

# Marks of a public function's parameters, `Annotated[T, MARK]`, for its command
FLAG, PYTHON = object(), object()  # a flag, not a positional argument; only in Python


def marked(default: Any, *marks: str) -> Any:
    """A field with this default and these marks."""
    return dataclasses.field(default=default, metadata=dict.fromkeys(marks, True))


def fields_marked(section: Any, mark: str, path: str = "") -> dict[str, Any]:
    """Dotted name -> default of every field with this mark, or of all for an empty one.

    A field without a default has dataclasses.MISSING there.
    """
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value, dotted = getattr(section, field.name), f"{path}.{field.name}" if path else field.name
        if dataclasses.is_dataclass(value):
            defaults |= fields_marked(value, mark, dotted)
        elif not mark or field.metadata.get(mark):
            defaults[dotted] = field.default
    return defaults


class UnknownField(BadInput):
    """A dotted name that is not a field."""


def checked(value: Any, hint: Any, path: str) -> Any:
    """The value converted to its type, or BadInput with the field, the value and what is valid."""
    origin, options = get_origin(hint), get_args(hint)
    problem = ""
    if origin is Annotated:
        value = checked(value, options[0], path)
        problem = next((str(limit) for limit in options[1:] if not limit.admits(value)), "")
    elif origin in (Union, types.UnionType):
        return _checked_union(value, options, path)
    elif origin is Literal:
        problem = "" if value in options else f"must be one of {', '.join(map(str, options))}"
    elif origin is collections.abc.Mapping:
        if isinstance(value, dict):
            return {str(key): str(item) for key, item in value.items()}
        problem = "must be an object"
    elif origin is tuple:
        kinds = (options[0],) * len(value) if options[1:] == (...,) and isinstance(value, (list, tuple)) else options
        if isinstance(value, (list, tuple)) and len(value) == len(kinds):
            return tuple(checked(item, kinds[i], f"{path}[{i}]") for i, item in enumerate(value))
        problem = (
            "must be a list, such as [1, 2]" if options[1:] == (...,) else f"must be a list of {len(kinds)} entries"
        )
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else from_json(hint, value, path)
    else:
        return _checked_plain(value, hint, path)
    if problem:
        raise BadInput(f"{path} = {repr(value)[:200]}: {problem}")
    return value


def _checked_plain(value: Any, hint: Any, path: str) -> Any:
    with contextlib.suppress(ValueError, OverflowError):
        if hint in (int, float) and isinstance(value, str):
            value = hint(value)  # .5 and 1_000 are not JSON, but their meaning is clear
        if hint is float and type(value) is int:
            value = float(value)
        elif hint is int and type(value) is float and value.is_integer():
            value = int(value)
        is_finite = hint is not float or not isinstance(value, float) or math.isfinite(value)
        if isinstance(value, hint) and (hint is bool) == isinstance(value, bool) and is_finite:
            return value
    name = {int: "a whole number", float: "a finite number", type(None): "null"}.get(hint) or hint.__name__
    raise BadInput(f"{path} = {repr(value)[:200]}: must be {name}")


def _checked_union(value: Any, options: tuple[Any, ...], path: str) -> Any:
    sections = [option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)]
    if len(sections) > 1 and isinstance(value, dict):
        kinds = {str(getattr(option, "kind", option.__name__)): option for option in sections}
        if value.get("kind") not in list(kinds):
            raise BadInput(f"{path}.kind = {value.get('kind')!r}: must be one of {', '.join(kinds)}")
        return checked(value, kinds[value["kind"]], path)
    if isinstance(value, tuple(sections)) or (value is None and type(None) in options):
        return value
    reasons = []
    for option in (option for option in options if option is not type(None)):
        try:
            return checked(value, option, path)
        except BadInput as error:
            reasons.append(error)
    if len(reasons) == 1:
        raise reasons[0]
    raise BadInput(f"{path} = {repr(value)[:200]}: {' or '.join(str(each).partition(': ')[2] for each in reasons)}")


@functools.cache  # annotations are text; evaluating them again takes longer than the checks
def _hints(section: Any) -> dict[str, Any]:
    kinds = typing.get_type_hints(section, include_extras=True)
    return {field.name: kinds[field.name] for field in dataclasses.fields(section)}


hints: Callable[[Any], dict[str, Any]] = _hints  # the type of each field of a section


def validated(section: Section, path: str) -> Section:
    """The section with every field checked (and coerced: 1 -> 1.0 for a float)."""
    values = {}
    for name, kind in hints(type(section)).items():
        dotted = f"{path}.{name}" if path else name
        value = checked(getattr(section, name), kind, dotted)
        values[name] = validated(value, dotted) if dataclasses.is_dataclass(value) else value
    return dataclasses.replace(section, **values)  # type: ignore[type-var]


def check_fields(section: Any) -> None:
    """Refuse a value that a field does not take, for objects that are made in Python."""
    for name, kind in hints(type(section)).items():
        checked(getattr(section, name), kind, f"{type(section).__name__}.{name}")


def to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def from_json(section: type[Section], values: Any, path: str) -> Section:
    if not isinstance(values, dict):
        raise BadInput(f"{path or section.__name__} = {repr(values)[:200]}: must be an object")
    kinds, prefix = hints(section), f"{path}." if path else ""
    if unknown := sorted(set(values) - set(kinds)):
        raise UnknownField(f"unknown field {prefix}{unknown[0]}{did_you_mean(unknown[0], kinds)}")
    try:
        return section(**{name: checked(value, kinds[name], prefix + name) for name, value in values.items()})
    except TypeError as error:
        raise BadInput(f"{path or section.__name__}: {error}") from None


def replaced(section: Section, dotted: str, value: Any, path: str = "") -> Section:
    """The section with one dotted field set: replaced(recipe, "loss.alpha", 0.3)."""
    name, _, inner_name = dotted.partition(".")
    kinds, full_name = hints(type(section)), f"{path}.{name}" if path else name
    if name not in kinds:
        raise UnknownField(f"unknown field {full_name!r}{did_you_mean(name, kinds)}")
    inner = getattr(section, name)
    if inner_name:  # setting a field of a section that is off turns it on, if the other fields have defaults
        inner = _default_section(kinds[name]) if inner is None else inner
        if not dataclasses.is_dataclass(inner):
            raise BadInput(f"{full_name} has no fields, so {full_name}.{inner_name} cannot be set")
        changed = replaced(inner, inner_name, value, full_name)
    elif dataclasses.is_dataclass(inner) and value is not None:
        last = dataclasses.fields(inner)[-1].name
        raise BadInput(f"{full_name} is a section; set one of its fields, such as {full_name}.{last}")
    else:
        changed = checked(value, kinds[name], full_name)
    return dataclasses.replace(section, **{name: changed})  # type: ignore[type-var]


def _default_section(hint: Any) -> Any:
    for kind in get_args(hint):
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            with contextlib.suppress(TypeError):  # a field has no default
                return kind()
    return None


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for anything else, also if it is nested too deep to work with."""
    with contextlib.suppress(RecursionError):
        value = json.loads(text)
        level = [value]
        for _ in range(100):  # our files have at most 6 levels
            lists = [list(parent.values()) if isinstance(parent, dict) else parent for parent in level]
            level = [item for items in lists if isinstance(items, list) for item in items]
            if not level:
                return value
    raise ValueError("nested deeper than 100 levels")


def parse_value(text: str) -> Any:
    """The value of an override: JSON if it is JSON, else the string itself."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def flattened(section: Any, path: str = "") -> dict[str, Any]:
    """{'loss.alpha': 0.5, ...}: every leaf of nested sections by its dotted name."""
    leaves: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        dotted = f"{path}.{field.name}" if path else field.name
        if dataclasses.is_dataclass(value):
            leaves.update(flattened(value, dotted))
        else:
            leaves[dotted] = value
    return leaves
