"""Frozen configuration sections: checked values, dotted overrides, JSON in both directions.

A section is a frozen dataclass whose annotations say which values are valid; `checked` enforces them. So a range is
written once, next to its field.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import json
import math
import types
import typing
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
        if self.low is not None and (value < self.low or (self.exclusive_low and value == self.low)):
            return False
        return self.high is None or value <= self.high

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
FREE_IN_A_SHARED_STEP = "may differ between runs that share a step"  # a tensor on the device, or not used by the step

# Marks of a public function's parameters, `Annotated[T, MARK]`, for its command
FLAG, PYTHON = object(), object()  # a flag, not a positional argument; only in Python


def marked(default: Any, *marks: str) -> Any:
    """A field with this default and these marks."""
    return dataclasses.field(default=default, metadata=dict.fromkeys(marks, True))


def fields_marked(section: Any, mark: str, path: str = "") -> dict[str, Any]:
    """Dotted name -> default of every field with this mark; a marked section counts with all its fields.

    A field without a default has dataclasses.MISSING there.
    """
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value, dotted = getattr(section, field.name), f"{path}.{field.name}" if path else field.name
        has_mark = mark == "" or bool(field.metadata.get(mark))
        if dataclasses.is_dataclass(value):
            defaults |= fields_marked(value, "" if has_mark else mark, dotted)
        elif has_mark:
            defaults[dotted] = field.default
    return defaults


class UnknownField(BadInput):
    """A dotted name that is not a field."""


MAX_SHOWN = 200  # characters of a value in a message


def shown(value: Any) -> str:
    """The value as a message shows it."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def checked(value: Any, hint: Any, path: str) -> Any:
    """The value converted to its type, or BadInput with the field, the value and what is valid."""
    origin = get_origin(hint)
    if origin is Annotated:
        base, *limits = get_args(hint)
        value = checked(value, base, path)
        for limit in limits:
            if isinstance(limit, Within) and not limit.admits(value):
                raise BadInput(f"{path} = {shown(value)}: {limit}")
        return value
    if origin in (Union, types.UnionType):
        return _checked_union(value, get_args(hint), path)
    if origin is Literal:
        if value not in get_args(hint):
            raise BadInput(f"{path} = {shown(value)}: must be one of {', '.join(map(str, get_args(hint)))}")
        return value
    if origin is collections.abc.Mapping:
        if not isinstance(value, dict):
            raise BadInput(f"{path} = {shown(value)}: must be an object")
        return {str(key): str(item) for key, item in value.items()}
    if origin is tuple:
        return _checked_tuple(value, get_args(hint), path)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else from_json(hint, value, path)
    return _checked_plain(value, hint, path)


def _checked_plain(value: Any, hint: Any, path: str) -> Any:
    if hint in (int, float) and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = hint(value)  # .5 and 1_000 are not JSON, but their meaning is clear
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise BadInput(f"{path} = {str(value)[:20]}: must be a finite number")
        return number
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is type(None):
        if value is None:
            return None
    elif isinstance(value, hint) and (hint is bool) == isinstance(value, bool):
        return value
    name = {int: "a whole number", type(None): "null"}.get(hint) or hint.__name__
    raise BadInput(f"{path} = {shown(value)}: must be {name}")


def _checked_union(value: Any, options: tuple[Any, ...], path: str) -> Any:
    if type(None) in options and value is None:
        return None
    options = tuple(option for option in options if option is not type(None))
    sections = [option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)]
    if len(sections) > 1 and isinstance(value, dict):
        kinds = {_kind(option): option for option in sections}
        if not isinstance(value.get("kind"), str) or value["kind"] not in kinds:
            raise BadInput(f"{path}.kind = {value.get('kind')!r}: must be one of {', '.join(kinds)}")
        return checked(value, kinds[value["kind"]], path)
    if sections and isinstance(value, tuple(sections)):
        return value
    if len(options) == 1:
        return checked(value, options[0], path)
    reasons = []
    for option in options:
        try:
            return checked(value, option, path)
        except BadInput as error:
            reasons.append(str(error).partition(": ")[2])
    raise BadInput(f"{path} = {shown(value)}: {' or '.join(reasons)}")


def _checked_tuple(value: Any, options: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise BadInput(f"{path} = {shown(value)}: must be a list, such as [1, 2]")
    if len(options) == 2 and options[1] is Ellipsis:
        options = (options[0],) * len(value)
    if len(value) != len(options):
        raise BadInput(f"{path} = {shown(value)}: must have {len(options)} entries")
    return tuple(checked(v, option, f"{path}[{i}]") for i, (v, option) in enumerate(zip(value, options, strict=True)))


def _kind(section: Any) -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(section)}
    return str(defaults.get("kind", section.__name__))


_hints: dict[type, dict[str, Any]] = {}  # annotations are text; evaluating them again takes longer than the checks


def hints(section: Any) -> dict[str, Any]:
    """The type of each field of a section."""
    if section not in _hints:
        _hints[section] = typing.get_type_hints(section, include_extras=True)
    return _hints[section]


def validated(section: Section, path: str) -> Section:
    """The section with every field checked (and coerced: 1 -> 1.0 for a float)."""
    kinds = hints(type(section))
    values = {}
    for field in dataclasses.fields(section):  # type: ignore[arg-type]
        name = field.name
        dotted = f"{path}.{name}" if path else name
        value = checked(getattr(section, name), kinds[name], dotted)
        values[name] = validated(value, dotted) if dataclasses.is_dataclass(value) else value
    return dataclasses.replace(section, **values)  # type: ignore[type-var]


def check_fields(section: Any) -> None:
    """Refuse a value that a field does not take, for objects that are made in Python."""
    kinds, title = hints(type(section)), type(section).__name__
    for field in dataclasses.fields(section):
        checked(getattr(section, field.name), kinds[field.name], f"{title}.{field.name}")


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
        raise BadInput(f"{path or section.__name__} = {shown(values)}: must be an object")
    kinds = hints(section)
    unknown = sorted(set(values) - set(kinds))
    if unknown:
        raise BadInput(f"unknown field {path + '.' if path else ''}{unknown[0]}{did_you_mean(unknown[0], kinds)}")
    prefix = f"{path}." if path else ""
    try:
        return section(**{name: checked(value, kinds[name], prefix + name) for name, value in values.items()})
    except TypeError as error:
        raise BadInput(f"{path or section.__name__}: {error}") from None


def replaced(section: Section, dotted: str, value: Any, path: str = "") -> Section:
    """The section with one dotted field set: replaced(recipe, "loss.alpha", 0.3)."""
    name, _, inner_name = dotted.partition(".")
    fields = {field.name for field in dataclasses.fields(section)}  # type: ignore[arg-type]
    full_name = f"{path}.{name}" if path else name
    if name not in fields:
        raise UnknownField(f"unknown field {full_name!r}{did_you_mean(name, fields)}")
    if inner_name:
        inner = getattr(section, name)
        if inner is None:  # setting a field of a section that is off turns it on, if the other fields have defaults
            inner = _default_section(hints(type(section))[name])
        if inner is None or not dataclasses.is_dataclass(inner):
            raise BadInput(f"{full_name} has no fields, so {full_name}.{inner_name} cannot be set")
        changed = replaced(inner, inner_name, value, full_name)
    else:
        inner = getattr(section, name)
        if dataclasses.is_dataclass(inner) and value is not None:
            raise BadInput(
                f"{full_name} is a section; set one of its fields, such as "
                f"{full_name}.{dataclasses.fields(inner)[-1].name}"
            )
        changed = checked(value, hints(type(section))[name], full_name)
    return dataclasses.replace(section, **{name: changed})  # type: ignore[type-var]


def _default_section(hint: Any) -> Any:
    for kind in get_args(hint):
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            missing = dataclasses.MISSING
            if all(f.default is not missing or f.default_factory is not missing for f in dataclasses.fields(kind)):
                return kind()
    return None


MAX_JSON_DEPTH = 100  # our files have at most 6 levels


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for anything else, also if it is nested too deep to work with."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_JSON_DEPTH} levels") from None
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        lists = [list(parent.values()) if isinstance(parent, dict) else parent for parent in level]
        level = [item for items in lists if isinstance(items, list) for item in items]
        if not level:
            return value
    raise ValueError(f"nested deeper than {MAX_JSON_DEPTH} levels")


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
