"""`supancl completion`: what a shell offers after TAB. bash runs its script here, and so do zsh and fish where they are
installed; the texts of all three are looked at everywhere."""

import os
import shlex
import shutil
import subprocess

import pytest

from supancl.cli.commands import COMMANDS
from supancl.cli.completion import SCRIPTS, walk
from supancl.recipes import RECIPES
from tests.files import supancl

SHELLS = [shell for shell in SCRIPTS if shutil.which(shell)]
ZSH = """
compdef() { }
source ../script
compadd() {
    shift; local word found=1
    for word; do [[ "$word" == "$current"* ]] && print -r -- "$word" && found=0; done
    return $found
}
_files() { ls -d -- "$current"* }
"""


def ask(shell, typed, position):
    """The line that shows what the shell offers for the last of the typed words."""
    if shell == "bash":
        state = f"COMP_WORDS=({shlex.join(typed)}); COMP_CWORD={position}"
        files = f"compgen -f -- {shlex.quote(typed[-1])}"  # what `-o default` means
        return f'source ../script; {state}; _supancl; printf "%s\\n" "${{COMPREPLY[@]}}" | grep . || {files}'
    if shell == "zsh":
        return f"{ZSH}words=({shlex.join(typed)}); CURRENT={position + 1}; _supancl"
    return f"source ../script; complete -C {shlex.quote(' '.join(typed))}"


@pytest.fixture(scope="module", params=SHELLS)
def complete(request, tmp_path_factory):
    """A function from the words typed so far, the last one unfinished, to what the shell offers."""
    from supancl.cli.dispatch import build_parser

    shell, folder = request.param, tmp_path_factory.mktemp("completion")
    (folder / "script").write_text(SCRIPTS[shell](list(walk(build_parser()))))
    (folder / "here" / "photos").mkdir(parents=True)
    command = [shutil.which(shell), *(["-f"] if shell == "zsh" else []), "-c"]
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}

    def offers(*words):
        line = ask(shell, ["supancl", *words], len(words))
        done = subprocess.run([*command, line], capture_output=True, text=True, cwd=folder / "here", env=environment)
        return [text.partition("\t")[0].rstrip("/") for text in done.stdout.splitlines() if text]

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
    assert set(complete("alpha", "")) >= set(RECIPES)
    assert complete("pretrain", "pho") == ["photos"]  # a recipe may be a file


def test_values_of_flags(complete):
    assert set(complete("evaluate", "knn", "run", "--metric", "")) == {"cosine", "l2"}
    assert complete("evaluate", "knn", "run", "--data", "pho") == ["photos"]
    assert complete("evaluate", "knn", "") == ["photos"]
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
