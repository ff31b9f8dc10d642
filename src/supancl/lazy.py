"""Import torch when it is first used: it takes seconds, and `--help` does not need it.

A module that needs torch only inside functions starts like this; a type checker sees the real torch:

    if TYPE_CHECKING:
        import torch
    else:
        from supancl.lazy import torch

A package whose `__init__` collects names from slow modules imports them under `if TYPE_CHECKING`, for `lazy_names`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for a module until one of its attributes is used: then the module is imported and takes its place."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_real(self.__name__), name)


def import_real(name: str) -> ModuleType:
    """Import a module, and replace every `LazyModule` in supancl's modules whose module is imported now.

    After that, tensor operations cost no extra look-up, and torch.compile sees the real torch.
    """
    real = import_module(name)
    for module in [module for path, module in list(sys.modules.items()) if path.partition(".")[0] == "supancl"]:
        for variable, value in list(vars(module).items()):
            if type(value) is LazyModule and value.__name__ in sys.modules:
                vars(module)[variable] = sys.modules[value.__name__]
    return real


torch, nn, F, dist = (
    sys.modules.get(name) or LazyModule(name)
    for name in ("torch", "torch.nn", "torch.nn.functional", "torch.distributed")
)


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package (PEP 562) for what its `file` imports under `if TYPE_CHECKING`."""
    blocks = [node.body for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If)]
    imports = [node for node in chain.from_iterable(blocks) if isinstance(node, ast.ImportFrom)]
    module_of = {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        vars(sys.modules[package])[name] = value  # the next look-up finds it there
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *module_of})
