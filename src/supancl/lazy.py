"""Import torch when it is first used: it takes seconds, and `--help` does not need it.

A module that needs torch only inside functions starts like this; a type checker sees the real torch:

    if TYPE_CHECKING:
        import torch
    else:
        from supancl.lazy import torch

A package whose `__init__` collects names from slow modules uses `lazy_names`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for a module until one of its attributes is used: then the module is imported and takes its place."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_real(self.__name__), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(import_real(self.__name__), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(import_real(self.__name__), name)


def import_real(name: str) -> ModuleType:
    """Import a module, and replace every `LazyModule` in supancl's modules whose module is imported now.

    After that, tensor operations cost no extra look-up, and torch.compile sees the real torch.
    """
    real = import_module(name)
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] == "supancl":
            for variable, value in list(vars(module).items()):
                if type(value) is LazyModule and value.__name__ in sys.modules:
                    vars(module)[variable] = sys.modules[value.__name__]
    return real


def lazy_module(name: str) -> ModuleType:
    return sys.modules.get(name) or LazyModule(name)


torch = lazy_module("torch")
nn = lazy_module("torch.nn")
F = lazy_module("torch.nn.functional")
dist = lazy_module("torch.distributed")


def lazy_names(package: str, modules: Mapping[str, str]) -> Any:
    """The `__getattr__` of a package (PEP 562); `modules` maps each module to the names it defines, in one string."""
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in module_of:
            value = getattr(import_module(module_of[name]), name)
            vars(import_module(package))[name] = value  # the next look-up finds it there
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
