"""Imports that wait until they are used: torch takes seconds to import, and `--help` does not need it.

A module that only computes with tensors begins like this, and a type checker sees the real torch:

    if TYPE_CHECKING:
        import torch
    else:
        from supancl.lazy import torch

A package whose `__init__` collects names from heavy modules says where they are with `lazy_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for a module, which is imported when one of its attributes is first read or set."""

    def __getattr__(self, name: str) -> Any:
        if name == "_module":
            self.__dict__["_module"] = import_module(self.__name__)
            return self._module
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._module, name)


torch = LazyModule("torch")
nn = LazyModule("torch.nn")
F = LazyModule("torch.nn.functional")
dist = LazyModule("torch.distributed")


def lazy_names(package: str, modules: Mapping[str, str], missing: Callable[[str, str], Any] | None = None) -> Any:
    """A package's `__getattr__` (PEP 562): `modules` says which names, with spaces between, each module defines.

    A name that is in none of them is looked up by `missing(package, name)`.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in module_of:
            value = getattr(import_module(module_of[name]), name)
            vars(import_module(package))[name] = value  # the next look-up finds it there
            return value
        if missing is not None:
            return missing(package, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
