"""The paper's experiments, each a command."""

from types import ModuleType

COMMANDS: dict[str, ModuleType] = {}

__all__ = ["COMMANDS"]
