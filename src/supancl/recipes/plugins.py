"""Plugins: a user's own losses, pools, encoders, recipes and benchmark data sets.

recipe.json stores the `kind` of a loss or pool, not its class. To resume or evaluate a run, a user's class must be
registered under its `kind`; `--plugin FILE` runs the file that registers it (plugin_files.py).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from supancl.config import from_json, hints
from supancl.core.losses import Align, Loss, LossTraits, Terms
from supancl.core.specs import EncoderSpec, PoolSpec
from supancl.data.sources.benchmark_rows import ALIASES, BENCHMARKS, Benchmark
from supancl.data.sources.layouts import Entry, OfficialList
from supancl.errors import BadInput, SupanclError
from supancl.recipes.plugin_files import loaded_plugins, plugin_hint

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    from supancl.lazy import nn, torch


class NotRegistered(BadInput):
    """A stored recipe has a kind for which no class is registered."""


Section = TypeVar("Section", bound=type)

REGISTERED: dict[tuple[str, str], Any] = {}  # (section, kind) -> class; ("encoder", name) -> function that builds it
REGISTERED_BENCHMARKS: set[str] = set()
POOL_KINDS = get_args(hints(PoolSpec)["kind"])
LOSS_KINDS = tuple(str(loss.kind) for loss in get_args(Loss))
PLACEHOLDERS: dict[str, Any] = {"loss": Align(), "pool": PoolSpec()}  # used while the other sections are read


def register(section: Section) -> Section:
    """Class decorator that registers a loss or pool, so that recipes can hold it and runs with it can be read.

    The class is a frozen dataclass with a new `kind`; a pool is a PoolSpec with another `build`. Running the definition
    again (a notebook cell, a reloaded module) replaces the earlier class.

    >>> from dataclasses import dataclass
    >>> @register
    ... @dataclass(frozen=True)
    ... class Sharper(Align):
    ...     kind: str = "sharper"
    """
    section_name = "pool" if issubclass(section, PoolSpec) else "loss"
    fields = {field.name: _default_of(field) for field in dataclasses.fields(section)} if _is_frozen(section) else {}
    kind, name = fields.get("kind"), section.__name__
    if not isinstance(kind, str):
        raise BadInput(f"{name}: must be a frozen dataclass with a field kind: str = NAME, which recipe.json stores")
    if kind in (POOL_KINDS if section_name == "pool" else LOSS_KINDS):
        raise BadInput(
            f"{name}: {section_name}.kind = {kind!r} is one of supancl's; choose another kind, so that runs "
            "can be read with the right class"
        )
    previous = REGISTERED.get((section_name, kind))
    if previous is not None and not _same_definition(section, previous) and not _all_from_notebook(section, previous):
        raise BadInput(
            f"{name}: {section_name}.kind = {kind!r} is already that of {previous.__module__}.{previous.__qualname__}; "
            "give one of them another kind (restart Python to forget a class that you have removed)"
        )
    for trait, default in vars(LossTraits).items() if section_name == "loss" else ():
        if not trait.startswith("__") and not hasattr(section, trait):
            setattr(section, trait, default)
    call = section.__call__ if section_name == "loss" else None  # may be inherited
    if inspect.isfunction(call) and call.__module__ != Align.__module__:
        setattr(section, "__call__", _with_checked_terms(call))  # noqa: B010 - mypy refuses to assign __call__
    REGISTERED[section_name, kind] = section
    return section


def register_encoder(name: str, build: Callable[[EncoderSpec], nn.Module]) -> None:
    """Register an encoder: `encoder.name = NAME` builds the module that `build` returns.

    It maps images (B, channels, size, size) to features (B, width).
    """
    from supancl.core.encoders import BUILDERS, VARIANTS, width_of

    if (name in BUILDERS or name in VARIANTS) and ("encoder", name) not in REGISTERED:
        raise BadInput(f"encoder {name!r} is one of supancl's; choose another name")

    def body_and_width(spec: EncoderSpec) -> tuple[nn.Module, int]:
        body = build(spec)
        if not isinstance(body, nn.Module):
            raise BadInput(f"encoder {name!r}: its function returned {_describe_type(body)}; expected a torch module")
        try:
            return body, width_of(body, spec)
        except Exception as error:
            if isinstance(error, BadInput) or describe_plugin_error(error):
                raise
            shape = f"({spec.channels}, {spec.size}, {spec.size})"
            raise BadInput(
                f"encoder {name!r} cannot take an image {shape}: {' '.join(str(error).split())}; build it for "
                "spec.channels and spec.size"
            ) from error

    REGISTERED["encoder", name] = build
    BUILDERS[name] = body_and_width


def register_benchmark(name: str, row: Benchmark) -> None:
    """Register a data set: `--data NAME@ROOT` opens it, `--root ROOT` finds it, `supancl data check` counts its images.

    A reader in `row.files` takes the data set's folder and lists (split, file, class) of every image.
    """
    if (name in BENCHMARKS or name in ALIASES) and name not in REGISTERED_BENCHMARKS:
        raise BadInput(f"benchmark {name!r} is one of supancl's; choose another name")
    if not row.uses or not (row.files or row.arrays):
        raise BadInput(
            f"benchmark {name!r}: needs split=(train, val, test) or images=N, and files={{MARK: reader}}, where "
            "the file or folder/ MARK identifies it (docs/extending.md)"
        )
    REGISTERED_BENCHMARKS.add(name)
    files = {mark: _listing_reader(name, reader) for mark, reader in row.files.items()}
    BENCHMARKS[name] = dataclasses.replace(row, files=files)


def _listing_reader(
    name: str, reader: Callable[[Path], OfficialList | Iterable[Entry]]
) -> Callable[[Path], OfficialList]:
    def read(folder: Path) -> OfficialList:
        listed = reader(folder)
        if isinstance(listed, OfficialList):
            return listed
        expected = f"benchmark {name!r}: its reader returned {{}}; expected (split, file, class) of every image"
        if not isinstance(listed, Iterable):
            raise BadInput(expected.format(type(listed).__name__))
        rows = list(listed)
        for row in rows:
            if not isinstance(row, (tuple, list)) or len(row) != 3:
                raise BadInput(expected.format(repr(row)))
        entries = [(split, Path(file), label) for split, file, label in rows]
        for split in {split for split, _, _ in entries} - {"train", "val", "test", "trainval"}:
            raise BadInput(f"benchmark {name!r}: unknown split {split!r}; give train, val, test or trainval")
        return OfficialList(entries)

    return read


# --- reading runs back ------------------------------------------------------------------------------------------------


def check_registered(name: str, section: Any, hint: Any) -> None:
    """Refuse a class that recipe.json cannot restore: resuming would silently use another one."""
    if type(section) in (*get_args(hint), hint):
        return
    if isinstance(section, type):
        raise BadInput(f"{name}: {section.__name__} is a class; write {section.__name__}(), with its settings")
    if type(section) in REGISTERED.values():
        kind = next(kind for (_, kind), registered in REGISTERED.items() if registered is type(section))
        if section.kind != kind:  # training would use the class, resuming the kind
            raise BadInput(
                f"{name}.kind = {section.kind!r}: {type(section).__name__} is registered as {kind!r}; to use "
                f"another {name}, start from a recipe that has it"
            )
        return
    current = REGISTERED.get((name, getattr(section, "kind", "")))
    if any(_same_definition(type(section), registered) for registered in REGISTERED.values()) or (
        current is not None and _all_from_notebook(type(section), current)
    ):
        raise BadInput(
            f"{name}: {type(section).__name__} was defined again after this recipe was built; build the recipe again"
        )
    advice = "only losses and pools can be your own classes"
    if name in PLACEHOLDERS:
        advice = "put @supancl.register above the class (docs/extending.md)"
    raise BadInput(
        f"{name}: {type(section).__name__} is not a class of supancl, so its run could not be restored "
        f"from recipe.json; {advice}"
    )


def has_plugin_section(recipe: Any) -> bool:
    """Whether its loss or pool is a plugin's: then it is not a method of the paper, whatever its name."""
    return type(recipe.loss) in REGISTERED.values() or type(recipe.pool) in REGISTERED.values()


def build_plugin_sections(stored: dict[str, Any], plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Build the sections of a stored recipe that come from plugins; NotRegistered if a kind is unknown."""
    sections = {}
    for name, builtin_kinds in (("loss", LOSS_KINDS), ("pool", POOL_KINDS)):
        values = stored.get(name)
        kind = values.get("kind") if isinstance(values, dict) else None
        if not isinstance(kind, str) or kind in builtin_kinds:
            continue
        if (name, kind) not in REGISTERED:
            registered_kinds = [kind for section, kind in REGISTERED if section == name]
            valid_kinds = ", ".join((*builtin_kinds, *registered_kinds))
            raise NotRegistered(f"{name}.kind = {kind!r} is none of {valid_kinds}; {plugin_hint(plugins)}")
        sections[name] = from_json(REGISTERED[name, kind], values, name)
    return sections


def required_plugins(recipe: Any) -> list[str]:
    """The plugin files needed to read a run of this recipe; empty if it uses only the package's classes."""
    plugin_objects = [REGISTERED.get(("encoder", recipe.encoder.name))]
    plugin_objects += [type(section) for section in (recipe.loss, recipe.pool) if type(section) in REGISTERED.values()]
    files = dict.fromkeys(
        os.path.abspath(_defining_file(plugin_object)) for plugin_object in plugin_objects if plugin_object is not None
    )
    benchmark_names = {name.partition("@")[0] for name in recipe.data.all_sources}
    needs_plugin = bool(files) or bool(benchmark_names & set(REGISTERED_BENCHMARKS))
    return list((needs_plugin and loaded_plugins()) or filter(os.path.isfile, files))


def describe_plugin_error(error: BaseException) -> str:
    """A message about an error raised in a plugin; empty for any other error."""
    if isinstance(error, SupanclError):  # its message is enough
        return ""
    files = {*map(os.path.abspath, map(_defining_file, REGISTERED.values())), *loaded_plugins()}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if os.path.abspath(frame.filename) in files:
            return (
                f"{frame.filename} line {frame.lineno}, in {frame.name}: {type(error).__name__}: {error}; fix it "
                "there (debug shows the traceback)"
            )
    return ""


def _with_checked_terms(call: Any) -> Any:
    """Wrap a loss so that a wrong result is reported here and not as an error later in the step."""

    @functools.wraps(call)
    def checked_call(self: Any, anchors: Tensor, *args: Any, **kwargs: Any) -> Any:
        terms, name = call(self, anchors, *args, **kwargs), type(self).__name__
        if not isinstance(terms, Terms):
            raise BadInput(
                f"{name}: returned {_describe_type(terms)}; expected Terms(total, ssl, sup) (docs/extending.md)"
            )
        for field, term in zip(Terms._fields, terms, strict=True):
            if not isinstance(term, torch.Tensor) or term.ndim:
                raise BadInput(
                    f"{name}: {field} is {_describe_type(term)}; expected a scalar tensor, the mean over the "
                    "samples (docs/extending.md)"
                )
        if anchors.requires_grad and torch.is_grad_enabled() and not terms.total.requires_grad:
            raise BadInput(
                f"{name}: total has no gradient, so nothing would be learned; was it detached? (docs/extending.md)"
            )
        return terms

    return checked_call


def _describe_type(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"a {type(value).__name__}{shape}"


def _same_definition(first: type, second: type) -> bool:
    """Whether two classes are the same definition: a cell run twice, a reloaded module, a script also imported."""
    return first.__qualname__ == second.__qualname__ and _defining_file(first) == _defining_file(second)


def _all_from_notebook(*sections: type) -> bool:
    """Whether all were defined in notebook cells or at a prompt, where a renamed class replaces the old one."""
    return all(section.__module__ == _defining_file(section) == "__main__" for section in sections)


def _defining_file(section: type) -> str:
    """The file that defines a class, or its module if there is no file."""
    return str(getattr(sys.modules.get(section.__module__), "__file__", None) or section.__module__)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _is_frozen(section: type) -> bool:
    return dataclasses.is_dataclass(section) and bool(section.__dataclass_params__.frozen)  # type: ignore[attr-defined]
