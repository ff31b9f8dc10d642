"""`supancl completion`: what a shell offers after TAB. bash runs its script here, and so do zsh and fish where they are
installed; the texts of all three are looked at everywhere."""

import pytest

from supancl.cli.commands import COMMANDS
from tests.files import supancl


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_in_the_script(shell, capsys):
    said = supancl(capsys, "completion", shell)
    assert said.code == 0
    assert all(name in said.out for name in COMMANDS)
    for flag in ("report-every", "leave-one-out", "plugin"):
        assert flag in said.out
    assert said.out.count("'") % 2 == 0 or shell == "fish"
