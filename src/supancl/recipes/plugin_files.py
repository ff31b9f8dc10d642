"""Plugin files: load them once, name them in commands, and notice when they change between two runs."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from supancl.errors import BadInput, SupanclError
from supancl.files import digest

LOADED_FILES: list[Path] = []  # in the order of --plugin
_loading: list[Path] = []


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
