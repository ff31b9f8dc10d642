"""Plugins: losses, pools, encoders, recipes and benchmark data sets of one's own, in a file of one's own.

A run is read back from its recipe.json, to go on and to be judged, and a file names no class; so a class that is not
the package's own is registered under its `kind`. `--plugin FILE` runs the file that does so.
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
from collections.abc import Callable, Iterable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from supancl.config import checked, from_json, hints
from supancl.core.losses import Align, Loss, LossTraits, Terms
from supancl.core.specs import EncoderSpec, PoolSpec
from supancl.data.sources.benchmark_rows import ALIASES, BENCHMARKS, Benchmark
from supancl.data.sources.layouts import Entry, OfficialList
from supancl.errors import BadInput, SupanclError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    from supancl.lazy import nn, torch


class NotRegistered(BadInput):
    """A stored recipe names a kind that no class was registered for."""


Section = TypeVar("Section", bound=type)

OWN: dict[tuple[str, str], Any] = {}  # (section, kind) -> class; ("encoder", name) -> function that builds it
OWN_BENCHMARKS: set[str] = set()
LOADED: list[Path] = []  # plugin files, in the order of --plugin
_loading: list[Path] = []
POOL_KINDS = get_args(hints(PoolSpec)["kind"])
LOSS_KINDS = tuple(str(loss.kind) for loss in get_args(Loss))
STANDINS: dict[str, Any] = {"loss": Align(), "pool": PoolSpec()}  # while the rest of a recipe is read
CALLED = {  # of a section, with what
    "loss": {"sees_batch": "pool", "__call__": "anchors, targets, labels, pool=None, whole=None"},
    "pool": {"build": "width, classes, unlabelled=False, ranks=None"},
}


def register(section: Section) -> Section:
    """Make a loss or a pool of one's own known, above its class: recipes may hold it then, and runs be read back.

    The class is a frozen dataclass with a `kind` of its own; a pool is a PoolSpec with another `build`. Defined anew
    (a notebook's cell, renamed or not, a module reloaded) it takes the place of the one before it.

    >>> from dataclasses import dataclass
    >>> @register
    ... @dataclass(frozen=True)
    ... class Sharper(Align):
    ...     kind: str = "sharper"
    """
    room = "pool" if issubclass(section, PoolSpec) else "loss"
    fields = {field.name: _default(field) for field in dataclasses.fields(section)} if _frozen(section) else {}
    kind, name = fields.get("kind"), section.__name__
    if not isinstance(kind, str):
        raise BadInput(
            f"{name}: must be a frozen dataclass with a field kind: str = NAME, under which recipe.json keeps it"
        )
    if kind in (POOL_KINDS if room == "pool" else LOSS_KINDS):
        raise BadInput(
            f"{name}: {room}.kind = {kind!r} is one of supancl's; give it a kind of its own, or runs "
            "would be read back with the other class"
        )
    lacks = _lacks(section, room, fields)
    if lacks:
        raise BadInput(f"{name}: needs {lacks} (docs/extending.md)")
    before = OWN.get((room, kind))
    if before is not None and not _same_definition(section, before) and not _of_notebook(section, before):
        raise BadInput(
            f"{name}: {room}.kind = {kind!r} is that of {before.__module__}.{before.__qualname__} already, "
            "whose runs would be read back with this class; give one of them another kind (one that is "
            "defined no more goes with its process: restart Python)"
        )
    for trait, usual in vars(LossTraits).items() if room == "loss" else ():
        if not trait.startswith("__") and not hasattr(section, trait):
            setattr(section, trait, usual)
    call = section.__call__ if room == "loss" else None  # may be that of a class above it
    if inspect.isfunction(call) and call.__module__ != Align.__module__:
        setattr(section, "__call__", _looked_at(call))  # noqa: B010 - a class has another one too
    OWN[room, kind] = section
    return section


def register_encoder(name: str, build: Callable[[EncoderSpec], nn.Module]) -> None:
    """Make an encoder of one's own known: `encoder.name = NAME` then means what `build` gives, a module that maps
    images (B, channels, size, size) to features (B, width).
    """
    from supancl.core.encoders import BUILDERS, VARIANTS, width_of

    if (name in BUILDERS or name in VARIANTS) and ("encoder", name) not in OWN:
        raise BadInput(f"encoder {name!r} is one of supancl's; give yours another name")

    def body_and_width(spec: EncoderSpec) -> tuple[nn.Module, int]:
        body = build(spec)
        return body, width_of(body, spec)

    OWN["encoder", name] = build
    BUILDERS[name] = body_and_width


def register_benchmark(name: str, row: Benchmark) -> None:
    """Make a data set known by name: `--data NAME@ROOT` opens it, `--root ROOT` finds it, `supancl data check` counts.

    A reader in `row.files` takes the data set's folder and lists (split, file, class) of every image.
    """
    if (name in BENCHMARKS or name in ALIASES) and name not in OWN_BENCHMARKS:
        raise BadInput(f"benchmark {name!r} is one of supancl's; give yours another name")
    if not row.uses or not (row.files or row.arrays):
        raise BadInput(
            f"benchmark {name!r}: needs split=(train, val, test) or images=N, and files={{MARK: reader}}, where the "
            "file or folder/ MARK is what it is known by (docs/extending.md)"
        )
    OWN_BENCHMARKS.add(name)
    files = {mark: _listing_reader(name, reader) for mark, reader in row.files.items()}
    BENCHMARKS[name] = dataclasses.replace(row, files=files)


def _listing_reader(
    name: str, reader: Callable[[Path], OfficialList | Iterable[Entry]]
) -> Callable[[Path], OfficialList]:
    def read(folder: Path) -> OfficialList:
        found = reader(folder)
        if isinstance(found, OfficialList):
            return found
        wanted = f"benchmark {name!r}: its reader gave {{}}; wanted (split, file, class) of every image"
        if not isinstance(found, Iterable):
            raise BadInput(wanted.format(type(found).__name__))
        rows = list(found)
        for row in rows:
            if not isinstance(row, (tuple, list)) or len(row) != 3:
                raise BadInput(wanted.format(repr(row)))
        entries = [(split, Path(file), label) for split, file, label in rows]
        for split in {split for split, _, _ in entries} - {"train", "val", "test", "trainval"}:
            raise BadInput(f"benchmark {name!r}: unknown split {split!r}; give train, val, test or trainval")
        return OfficialList(entries)

    return read


# --- plugin files -----------------------------------------------------------------------------------------------------


def load_plugin(file: str | Path) -> None:
    """Run a file that registers things, once in a process; worker processes load the same files."""
    path = Path(file).resolve()
    script = getattr(sys.modules["__main__"], "__file__", None)
    if path in LOADED or (script is not None and path == Path(script).resolve()):
        return
    if path in _loading:
        raise BadInput(
            f'--plugin {file}: it calls supancl while it is loaded; put that under if __name__ == "__main__":'
        )
    if not path.is_file():
        raise BadInput(
            f"--plugin {file}: no such file; give the Python file that registers your loss (docs/extending.md)"
        )
    name = "supancl_plugin" + re.sub(r"\W", "_", str(path))  # the same in every process: pickled classes name it
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"--plugin {file}: not a Python file; its name must end in .py (docs/extending.md)")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for what it imports from beside it
    module = sys.modules[name] = module_from_spec(spec)
    _loading.append(path)
    try:
        spec.loader.exec_module(module)
        LOADED.append(path)
    except Exception as error:
        raise BadInput(
            f"--plugin {file}: {_where(error, path)}; mend it there (--debug shows the way to it)"
        ) from error
    finally:
        _loading.remove(path)


def _where(error: Exception, path: Path) -> str:
    """The line of the plugin in which an error began, and the error."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename} line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = f"{path} line {frames[-1].lineno}: " if frames else ""
    return f"{line}{'' if isinstance(error, SupanclError) else f'{type(error).__name__}: '}{error}"


def loaded_plugins() -> tuple[str, ...]:
    return tuple(map(str, LOADED))


def plugins_of(recipe: Any) -> list[str]:
    """The files without which a run of this recipe cannot be read back; none where all of it is the package's own."""
    own = [OWN.get(("encoder", recipe.encoder.name))]
    own += [type(section) for section in (recipe.loss, recipe.pool) if type(section) in OWN.values()]
    places = dict.fromkeys(os.path.abspath(_place(each)) for each in own if each is not None)
    needs_one = bool(places) or recipe.data.source.partition("@")[0] in OWN_BENCHMARKS
    return list(loaded_plugins() if needs_one and LOADED else filter(os.path.isfile, places))


def plugin_flags(files: Sequence[str]) -> str:
    """The flags that load these plugins, to be added to a command that is shown; empty of none."""
    return "".join(f" --plugin {shlex.quote(file)}" for file in files)


def way_to_plugin(files: Sequence[str]) -> str:
    """What to do about something that is not registered; `files` are those that the run was made with."""
    if not files:
        return "if it is your own, pass the file that registers it: --plugin FILE, see docs/extending.md"
    return f"the run was made with a plugin; pass it:{plugin_flags(files)}"


# --- reading runs back ------------------------------------------------------------------------------------------------


def check_known(name: str, section: Any, hint: Any) -> None:
    """Refuse what recipe.json could not give back: a run with it would go on, without a word, as something else."""
    if type(section) in (*get_args(hint), hint):
        return
    if type(section) in OWN.values():
        kind = next(kind for (_, kind), known in OWN.items() if known is type(section))
        if section.kind != kind:  # the class would train, and the kind be read back
            raise BadInput(
                f"{name}.kind = {section.kind!r}: {type(section).__name__} is registered as {kind!r}; for "
                f"another {name} take a recipe that has it"
            )
        return
    now = OWN.get((name, getattr(section, "kind", "")))
    if any(_same_definition(type(section), known) for known in OWN.values()) or (
        now is not None and _of_notebook(type(section), now)
    ):
        raise BadInput(
            f"{name}: {type(section).__name__} has been defined anew since this recipe took it; make the recipe again"
        )
    way = "only losses and pools may be of one's own"
    if name in STANDINS:
        way = "put @supancl.register above the class (docs/extending.md)"
    raise BadInput(
        f"{name}: {type(section).__name__} is no class of supancl's, so its run could not be read back from "
        f"recipe.json; {way}"
    )


def has_own(recipe: Any) -> bool:
    """Whether its loss or its pool is not the package's: then it is no method of the paper's, whatever its name."""
    return type(recipe.loss) in OWN.values() or type(recipe.pool) in OWN.values()


def own_sections(stored: dict[str, Any], plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Of a stored recipe the sections that are not the package's own, built; a kind that nobody registered is named."""
    found = {}
    for name, known in (("loss", LOSS_KINDS), ("pool", POOL_KINDS)):
        values = stored.get(name)
        kind = values.get("kind") if isinstance(values, dict) else None
        if not isinstance(kind, str) or kind in known:
            continue
        if (name, kind) not in OWN:
            raise NotRegistered(
                f"{name}.kind = {kind!r} is none of {', '.join((*known, *_kinds(name)))}; {way_to_plugin(plugins)}"
            )
        found[name] = from_json(OWN[name, kind], values, name)
    return found


def fault_in_own(error: BaseException) -> str:
    """What to say of an error that came out of a plugin; empty of any other."""
    if isinstance(error, SupanclError):  # says itself what is wrong
        return ""
    places = {*map(os.path.abspath, map(_place, OWN.values())), *loaded_plugins()}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if os.path.abspath(frame.filename) in places:
            return (
                f"{frame.filename} line {frame.lineno}, in {frame.name}: {type(error).__name__}: {error}; mend it "
                "there (--debug shows the way to it)"
            )
    return ""


def _looked_at(call: Any) -> Any:
    """A loss that says what is wrong with what it gives, which would else be an error somewhere in the step."""

    @functools.wraps(call)
    def looked_at(self: Any, anchors: Tensor, *rest: Any, **named: Any) -> Any:
        terms, name = call(self, anchors, *rest, **named), type(self).__name__
        if not isinstance(terms, Terms):
            raise BadInput(f"{name}: gave {_kind_of(terms)}; wanted Terms(total, ssl, sup) (docs/extending.md)")
        for field, term in zip(Terms._fields, terms, strict=True):
            if not isinstance(term, torch.Tensor) or term.ndim:
                raise BadInput(
                    f"{name}: {field} is {_kind_of(term)}; wanted a tensor of one number, the mean over the "
                    "samples (docs/extending.md)"
                )
        if anchors.requires_grad and torch.is_grad_enabled() and not terms.total.requires_grad:
            raise BadInput(
                f"{name}: total has no gradient, so nothing would be learned; was it detached? (docs/extending.md)"
            )
        return terms

    return looked_at


def _kind_of(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"a {type(value).__name__}{shape}"


def _lacks(section: Any, room: str, fields: dict[str, Any]) -> str:
    """What a run would call or ask for and not find, most of it only on several GPUs or at the end of an epoch."""
    if room == "pool" and section.build is PoolSpec.build:
        return "a build of its own: PoolSpec's knows the kinds of supancl alone"
    if room == "loss" and not hasattr(section, "supervised") and "supervised" not in fields:
        return "supervised = True or False: whether it takes labels"
    for name, wanted in CALLED[room].items():
        found = next((vars(each)[name] for each in section.__mro__ if name in vars(each)), None)
        if found is None or (inspect.isfunction(found) and not _takes(found, wanted)):
            return f"def {name}(self, {wanted})"
    for name, hint in hints(section).items():
        if fields.get(name, dataclasses.MISSING) is not dataclasses.MISSING:
            try:
                checked(fields[name], hint, f"{section.__name__}.{name}")
            except TypeError:
                return f"another type for {name}: numbers, words, true and false, None and tuples of them can be kept"
    return ""


def _takes(function: Any, wanted: str) -> bool:
    named = [each for each in wanted.split(", ") if "=" in each]
    given = dict.fromkeys(each.partition("=")[0] for each in named)
    places = [None] * (1 + wanted.count(", ") + 1 - len(named))  # the section itself is the first
    try:
        inspect.signature(function).bind(*places, **given)
    except TypeError:
        return False
    return True


def _same_definition(one: type, other: type) -> bool:
    """Whether two classes come from one place: a cell run twice, a module reloaded, a script that is imported too."""
    return one.__qualname__ == other.__qualname__ and _place(one) == _place(other)


def _of_notebook(*sections: type) -> bool:
    """Whether all were written in cells, or at a prompt: one that was renamed there is no second one."""
    return all(each.__module__ == _place(each) == "__main__" for each in sections)


def _place(section: type) -> str:
    """The file of a class, which has two names as a script and as a module; its module where there is no file."""
    return str(getattr(sys.modules.get(section.__module__), "__file__", None) or section.__module__)


def _kinds(name: str) -> list[str]:
    return [kind for room, kind in OWN if room == name]


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _frozen(section: type) -> bool:
    return dataclasses.is_dataclass(section) and bool(section.__dataclass_params__.frozen)  # type: ignore[attr-defined]
