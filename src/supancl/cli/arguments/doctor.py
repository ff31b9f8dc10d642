"""`supancl doctor` takes no arguments of its own."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None: ...
