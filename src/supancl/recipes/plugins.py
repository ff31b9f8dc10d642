"""Plugins: a user's own losses, pools, encoders, recipes and benchmark data sets.

recipe.json stores the `kind` of a loss or pool, not its class. To resume or evaluate a run, a user's class must be
registered under its `kind`; `--plugin FILE` runs the file that registers it, once per process.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from supancl.config import from_json, hints
from supancl.core.losses import Align, Loss, LossTraits
from supancl.core.specs import EncoderSpec, PoolSpec
from supancl.data.sources.benchmark_rows import ALIASES, BENCHMARKS, Benchmark
from supancl.errors import BadInput, SupanclError

if TYPE_CHECKING:
    from torch import nn
else:
    from supancl.lazy import nn


LOADED_FILES: list[Path] = []  # in the order of --plugin
Section = TypeVar("Section", bound=type)
REGISTERED: dict[tuple[str, str], Any] = {}  # (section, kind) -> class; ("encoder", name) -> function that builds it
REGISTERED_BENCHMARKS: set[str] = set()
KINDS = {"loss": tuple(str(loss.kind) for loss in get_args(Loss)), "pool": get_args(hints(PoolSpec)["kind"])}
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
    part, name = "pool" if issubclass(section, PoolSpec) else "loss", section.__name__
    kind = getattr(section, "kind", None) if dataclasses.is_dataclass(section) else None
    if not isinstance(kind, str) or not section.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise BadInput(f"{name}: must be a frozen dataclass with a field kind: str = NAME, which recipe.json stores")
    if kind in KINDS[part]:
        raise BadInput(f"{name}: {part}.kind = {kind!r} is taken; choose another kind, so that runs can be read")
    if part == "loss":
        for trait, default in vars(LossTraits).items():
            if not trait.startswith("__") and not hasattr(section, trait):
                setattr(section, trait, default)
    REGISTERED[part, kind] = section
    return section


def register_encoder(name: str, build: Callable[[EncoderSpec], nn.Module]) -> None:
    """Register an encoder: `encoder.name = NAME` builds the module that `build` returns.

    It maps images (B, channels, size, size) to features (B, width).
    """
    from supancl.core.encoders import BUILDERS, VARIANTS, width_of

    if (name in BUILDERS or name in VARIANTS) and ("encoder", name) not in REGISTERED:
        raise BadInput(f"encoder {name!r} is one of supancl's; choose another name")

    def body_and_width(spec: EncoderSpec) -> tuple[nn.Module, int]:
        try:
            body = build(spec)
            return body, width_of(body, spec)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise BadInput(
                f"encoder {name!r} must be a module that takes images ({spec.channels}, {spec.size}, {spec.size}): "
                f"{' '.join(str(error).split())}; build it for spec.channels and spec.size"
            ) from error

    REGISTERED["encoder", name] = build
    BUILDERS[name] = body_and_width


def register_benchmark(name: str, row: Benchmark) -> None:
    """Register a data set: `--data NAME@ROOT` opens it, `--root ROOT` finds it, `supancl data check` counts its images.

    A reader in `row.files` takes the data set's folder and lists (split, file, class) of every image.
    """
    if (name in BENCHMARKS or name in ALIASES) and name not in REGISTERED_BENCHMARKS:
        raise BadInput(f"benchmark {name!r} is one of supancl's; choose another name")
    REGISTERED_BENCHMARKS.add(name)
    BENCHMARKS[name] = row


# --- reading runs back ------------------------------------------------------------------------------------------------


def check_registered(name: str, section: Any, hint: Any) -> None:
    """Refuse a class that recipe.json cannot restore: resuming would silently use another one."""
    if type(section) in (*get_args(hint), hint):
        return
    kind = next((kind for (_, kind), registered in REGISTERED.items() if registered is type(section)), None)
    if kind is None or section.kind != kind:
        raise BadInput(
            f"{name}: recipe.json could not restore {section!r}; give an object of a class with @supancl.register "
            "above it, and its own kind (docs/extending.md)"
        )


def has_plugin_section(recipe: Any) -> bool:
    """Whether its loss or pool is a plugin's: then it is not a method of the paper, whatever its name."""
    return type(recipe.loss) in REGISTERED.values() or type(recipe.pool) in REGISTERED.values()


def build_plugin_sections(stored: dict[str, Any], plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Build the sections of a stored recipe that come from plugins."""
    sections = {}
    for name, builtin_kinds in KINDS.items():
        values = stored.get(name)
        kind = values.get("kind") if isinstance(values, dict) else None
        if not isinstance(kind, str) or kind in builtin_kinds:
            continue
        if (name, kind) not in REGISTERED:
            raise BadInput(f"{name}.kind = {kind!r} is none of {', '.join(builtin_kinds)}; {plugin_hint(plugins)}")
        sections[name] = from_json(REGISTERED[name, kind], values, name)
    return sections


def required_plugins(recipe: Any) -> list[str]:
    """The plugin files needed to read a run of this recipe; empty if it uses only the package's classes."""
    used = (type(recipe.loss), type(recipe.pool), REGISTERED.get(("encoder", recipe.encoder.name)))
    files = dict.fromkeys(defining_file(each) for each in used if each in REGISTERED.values())
    benchmarks = {name.partition("@")[0] for name in recipe.data.all_sources} & REGISTERED_BENCHMARKS
    return list(((files or benchmarks) and loaded_plugins()) or filter(os.path.isfile, files))


def defining_file(section: Any) -> str:
    """The file that defines a class or function, or its module if there is no file."""
    file = getattr(sys.modules.get(section.__module__), "__file__", None)
    return os.path.abspath(file) if file else str(section.__module__)


# --- plugin files -----------------------------------------------------------------------------------------------------


def load_plugin(file: str | Path) -> None:
    """Run a plugin file, at most once per process; worker processes load the same files."""
    path = Path(file).resolve()
    script = getattr(sys.modules["__main__"], "__file__", None)
    if path in LOADED_FILES or (script is not None and path == Path(script).resolve()):
        return
    name = "supancl_plugin" + re.sub(r"\W", "_", str(path))  # the same in every process, for pickled classes
    spec = spec_from_file_location(name, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise BadInput(f"plugin {file}: no such Python file; give the .py that registers yours (docs/extending.md)")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # it may import files next to it
    module = sys.modules[name] = module_from_spec(spec)
    LOADED_FILES.append(path)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        where = describe_plugin_error(error) or str(error)
        LOADED_FILES.remove(path)
        raise BadInput(f"plugin {file}: {where}") from error


def describe_plugin_error(error: BaseException) -> str:
    """A message about an error raised in a plugin; empty for any other error."""
    if isinstance(error, SupanclError):  # its message is enough
        return ""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    files = {*map(defining_file, REGISTERED.values()), *loaded_plugins()}
    for file, line in reversed(places):
        if os.path.abspath(file) in files:
            return f"{file} line {line}: {type(error).__name__}: {error}; fix it there (debug shows the traceback)"
    return ""


def loaded_plugins() -> tuple[str, ...]:
    return tuple(map(str, LOADED_FILES))


def plugin_flags(saved: Sequence[str] = ()) -> str:
    """The flags to append to a displayed command: of the plugins that are loaded, or else that a run began with."""
    return "".join(f" --plugin {shlex.quote(file)}" for file in loaded_plugins() or saved)


def plugin_hint(files: Sequence[str]) -> str:
    """Advice about something that is not registered; `files` are the plugins that the run used."""
    used = f"the run used {', '.join(files)}; " if files else ""
    return f"{used}if it is your own, pass the file that registers it:{plugin_flags(files) or ' --plugin FILE'}"
