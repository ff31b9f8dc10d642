"""The mutants: small, meaningful mistakes in the core that the tests must notice. `make mutants` tries them all."""

from tests.mutants.mutant import Group, Mutant

__all__ = ["Group", "Mutant"]
