"""`supancl completion`: what a shell offers after TAB. bash runs its script here; zsh and fish are not installed."""

import shlex
import shutil
import subprocess

import pytest

from supancl.cli.commands import COMMANDS
from supancl.recipes import RECIPES
from tests.files import supancl


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A function from the words typed so far, the last one unfinished, to what bash offers."""
    from supancl.cli.completion import bash_script, walk
    from supancl.cli.dispatch import build_parser

    folder = tmp_path_factory.mktemp("completion")
    (folder / "script").write_text(bash_script(list(walk(build_parser()))))

    def offers(*words):
        typed = " ".join(shlex.quote(word) for word in ("supancl", *words))
        state = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}"
        lines = f"source {folder}/script; {state}; _supancl; echo ${{COMPREPLY[*]}}"
        done = subprocess.run([shutil.which("bash"), "-c", lines], capture_output=True, text=True, check=True)
        assert not done.stderr
        return done.stdout.split()

    return offers


def test_commands(complete):
    assert set(complete("")) == set(COMMANDS)
    assert complete("pret") == ["pretrain"]
    assert "--version" in complete("--")


def test_subcommands_and_their_flags(complete):
    assert complete("evaluate", "kn") == ["knn"]
    assert "--leave-one-out" in complete("evaluate", "knn", "run", "--")
    assert "--leave-one-out" not in complete("evaluate", "linear", "run", "--")
    assert "--report-every" in complete("pretrain", "digits.supsiam", "--r")


def test_recipes(complete):
    assert complete("pretrain", "digits.supsi") == ["digits.supsiam"]
    assert set(complete("alpha", "")) == set(RECIPES)


def test_values_of_flags(complete):
    assert set(complete("evaluate", "knn", "run", "--metric", "")) == {"cosine", "l2"}
    assert complete("evaluate", "knn", "run", "--data", "") == []  # bash completes files
    assert complete("evaluate", "knn", "") == []
    assert complete("completion", "f") == ["fish"]


def test_the_word_of_a_command_that_is_no_command_changes_nothing(complete):
    assert "--report-every" in complete("pretrain", "--out", "evaluate", "--r")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_in_the_script(shell, capsys):
    said = supancl(capsys, "completion", shell)
    assert said.code == 0
    assert all(name in said.out for name in COMMANDS)
    for flag in ("report-every", "leave-one-out", "plugin"):
        assert flag in said.out
    assert said.out.count("'") % 2 == 0 or shell == "fish"


def test_an_unknown_shell_is_refused(capsys):
    assert supancl(capsys, "completion", "tcsh").code == 2
