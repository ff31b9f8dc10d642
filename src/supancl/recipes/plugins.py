"""Plugins: a user's own losses, pools, encoders, recipes and benchmark data sets.

recipe.json stores the `kind` of a loss or pool, not its class. To resume or evaluate a run, a user's class must be
registered under its `kind`; `--plugin FILE` runs the file that registers it, once, and a run notices when it changes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from supancl.config import from_json, hints
from supancl.core.losses import Align, Loss, LossTraits, Terms
from supancl.core.specs import EncoderSpec, PoolSpec
from supancl.data.sources.benchmark_rows import ALIASES, BENCHMARKS, Benchmark
from supancl.data.sources.layouts import Entry, OfficialList
from supancl.errors import BadInput, SupanclError
from supancl.files import digest

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    from supancl.lazy import nn, torch


LOADED_FILES: list[Path] = []  # in the order of --plugin
_loading: list[Path] = []


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
    section_name, name = "pool" if issubclass(section, PoolSpec) else "loss", section.__name__
    kind = getattr(section, "kind", None) if dataclasses.is_dataclass(section) else None
    if not isinstance(kind, str) or not section.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise BadInput(f"{name}: must be a frozen dataclass with a field kind: str = NAME, which recipe.json stores")
    previous = REGISTERED.get((section_name, kind))
    is_other = previous is not None and _defining_file(section) != _defining_file(previous)
    if is_other or kind in (POOL_KINDS if section_name == "pool" else LOSS_KINDS):
        raise BadInput(
            f"{name}: {section_name}.kind = {kind!r} is taken; choose another kind, so that runs can be read"
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
        except RuntimeError as error:
            raise BadInput(
                f"encoder {name!r} cannot take an image ({spec.channels}, {spec.size}, {spec.size}): "
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
        try:
            entries = [(split, Path(file), label) for split, file, label in listed]
        except (TypeError, ValueError):
            raise BadInput(f"benchmark {name!r}: its reader must return (split, file, class) of every image") from None
        if unknown := {split for split, _, _ in entries} - {"train", "val", "test", "trainval"}:
            raise BadInput(f"benchmark {name!r}: unknown splits {sorted(unknown)}; give train, val, test or trainval")
        return OfficialList(entries)

    return read


# --- reading runs back ------------------------------------------------------------------------------------------------


def check_registered(name: str, section: Any, hint: Any) -> None:
    """Refuse a class that recipe.json cannot restore: resuming would silently use another one."""
    if type(section) in (*get_args(hint), hint):
        return
    if isinstance(section, type):
        raise BadInput(f"{name}: {section.__name__} is a class; write {section.__name__}(), with its settings")
    kind = next((kind for (_, kind), registered in REGISTERED.items() if registered is type(section)), None)
    if kind is None:
        advice = "put @supancl.register above the class, and build the recipe after it (docs/extending.md)"
        advice = advice if name in PLACEHOLDERS else "only losses and pools can be your own classes"
        raise BadInput(f"{name}: recipe.json could not restore the class {type(section).__name__}; {advice}")
    if section.kind != kind:  # training would use the class, resuming the kind
        raise BadInput(
            f"{name}.kind = {section.kind!r}: {type(section).__name__} is registered as {kind!r}; to use "
            f"another {name}, start from a recipe that has it"
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
        wrong = isinstance(terms, Terms) and [t for t in terms if not isinstance(t, torch.Tensor) or t.ndim]
        if wrong or not isinstance(terms, Terms):
            raise BadInput(
                f"{name}: returned {_describe_type(wrong[0] if wrong else terms)}; expected Terms(total, ssl, sup), "
                "each the mean over the samples, a scalar tensor (docs/extending.md)"
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


def _defining_file(section: type) -> str:
    """The file that defines a class, or its module if there is no file."""
    return str(getattr(sys.modules.get(section.__module__), "__file__", None) or section.__module__)


# --- plugin files -----------------------------------------------------------------------------------------------------


def load_plugin(file: str | Path) -> None:
    """Run a plugin file, at most once per process; worker processes load the same files."""
    path = Path(file).resolve()
    script = getattr(sys.modules["__main__"], "__file__", None)
    if path in LOADED_FILES or (script is not None and path == Path(script).resolve()):
        return
    if path in _loading:
        raise BadInput(
            f'--plugin {file}: it runs supancl while it is loaded; put that call under if __name__ == "__main__":'
        )
    if not path.is_file():
        raise BadInput(
            f"plugin {file}: no such file; give the Python file that registers what you added (docs/extending.md)"
        )
    name = "supancl_plugin" + re.sub(r"\W", "_", str(path))  # the same in every process, for pickled classes
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"plugin {file}: not a Python file; its name must end in .py (docs/extending.md)")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # it may import files next to it
    module = sys.modules[name] = module_from_spec(spec)
    _loading.append(path)
    try:
        spec.loader.exec_module(module)
        LOADED_FILES.append(path)
    except Exception as error:
        raise BadInput(
            f"plugin {file}: {_locate_error(error, path)}; fix it there (debug shows the traceback)"
        ) from error
    finally:
        _loading.remove(path)


def _locate_error(error: Exception, path: Path) -> str:
    """The error, with the line of the plugin that caused it."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename} line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = f"{path} line {frames[-1].lineno}: " if frames else ""
    return f"{line}{'' if isinstance(error, SupanclError) else f'{type(error).__name__}: '}{error}"


def loaded_plugins() -> tuple[str, ...]:
    return tuple(map(str, LOADED_FILES))


def plugin_flags(files: Sequence[str]) -> str:
    """The flags that load these plugins, to append to a displayed command."""
    return "".join(f" --plugin {shlex.quote(file)}" for file in files)


def plugin_hint(files: Sequence[str]) -> str:
    """Advice about something that is not registered; `files` are the plugins that the run used."""
    if not files:
        return "if it is your own, pass the file that registers it with --plugin FILE, or import it (docs/extending.md)"
    gone = next((file for file in files if not os.path.isfile(file)), None)
    if gone is not None:
        return f"the run used the plugin {gone}, which is not there; pass --plugin FILE from its new place"
    return f"the run used a plugin; pass it:{plugin_flags(files)} (in Python, import it first)"


def plugins_to_continue(saved: Sequence[str]) -> Sequence[str]:
    """The plugin files to name in advice: those that are loaded now, or else those that the run was begun with."""
    return loaded_plugins() or saved


def plugin_digests(files: Sequence[str]) -> dict[str, str]:
    """A checksum of each plugin file that can be read."""
    return {file: digest(Path(file)) for file in files if os.path.isfile(file)}


def changed_plugins(saved: Mapping[str, str]) -> list[str]:
    """The loaded plugin files whose content is none of those that the run was begun with."""
    now = plugin_digests(loaded_plugins())
    return [file for file, content in now.items() if content not in saved.values()] if saved else []


def refuse_while_loading() -> None:
    """Refuse to train while a plugin is loaded: every later use of the file would train again."""
    if _loading:
        raise BadInput(f'{_loading[-1]}: trains while it is loaded; put that call under if __name__ == "__main__":')
