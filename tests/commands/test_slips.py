"""Slips of the keyboard: unknown flags and commands are answered with what was meant."""

import json

import pytest

from tests.files import TINY, class_folders, picture, supancl


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--lr", "0.1"], "did you mean --set optimizer.lr=X?"),
        (["--learning-rate=0.1"], "did you mean --set optimizer.lr=X?"),
        (["--alpha", "0.3"], "did you mean --set loss.alpha=X?"),
        (["--batchsize", "8"], "did you mean --batch-size?"),
        (["--momentum", "0.9"], "did you mean --set branches.momentum=X or --set optimizer.momentum=X?"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_one_meant(given, meant, capsys):
    said = supancl(capsys, "pretrain", "digits.supsiam", *given)
    assert said.code == 2
    assert said.err == f"supancl: unrecognized arguments: {' '.join(given)}; {meant} (see supancl pretrain --help)\n"


def test_a_flag_like_none_is_answered_with_the_help(capsys):
    said = supancl(capsys, "pretrain", "digits.supsiam", "--frobnicate", "3")
    assert said.err == "supancl: unrecognized arguments: --frobnicate 3 (see supancl pretrain --help)\n"


def test_commands_without_set_name_flags_alone(capsys):
    said = supancl(capsys, "evaluate", "knn", "run", "--lr", "0.1")
    assert "--set" not in said.err
    assert "did you mean --metric?" in supancl(capsys, "evaluate", "knn", "run", "--metrics", "l2").err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["knn", "run"], "unknown command 'knn'; did you mean 'evaluate knn'?"),
        (["export", "run"], "unknown command 'export'; an encoder's weights are RUN/encoder.safetensors"),
        (["train"], "unknown command 'train'; did you mean 'pretrain'?"),
        (["evaluate"], "name one of fewshot, finetune, knn, linear, suite, transfer, variance"),
        (["data"], "name one of cache, check, show, where"),
    ],
)
def test_a_command_that_is_missing_or_elsewhere_is_named(given, meant, capsys):
    said = supancl(capsys, *given)
    assert said.code == 2
    assert said.err.startswith(f"supancl: {meant}")
    assert "did you mean 'import'" not in said.err


def test_after_training_without_labels_the_advice_names_labelled_data(tmp_path, capsys):
    """`evaluate knn RUN` alone would be refused: such a run has nothing to judge by."""
    class_folders(tmp_path / "data", each=12)
    for i in range(20):
        picture(tmp_path / "flat" / f"{i}.png", seed=i)
    for name in ("flat", "data"):
        run = tmp_path / f"run of {name}"
        said = supancl(capsys, "pretrain", "digits.simsiam", *TINY, "--data", tmp_path / name, "--out", run)
        assert said.code == 0, said.err
        told = " ".join(said.out.split())
        assert told.endswith(
            f"judge it with: supancl evaluate knn '{run}'" + " --data LABELLED_IMAGES" * (name == "flat")
        )
        content = json.loads((run / "recipe.json").read_text())
        del content["data"]["labelled"]  # of a run whose file does not say, nothing is known
        (run / "recipe.json").write_text(json.dumps(content))
        said = supancl(capsys, "pretrain", "--resume", "--out", run)
        assert said.code == 0, said.err
        assert " ".join(said.out.split()).endswith(f"judge it with: supancl evaluate knn '{run}'")
