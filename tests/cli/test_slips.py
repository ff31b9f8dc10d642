"""Slips of the keyboard: unknown flags and commands are answered with what was meant."""

import json

import pytest

from tests.files import TINY, assert_mentions, assert_refused, class_folders, picture, supancl


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--lr", "0.1"], ("--set optimizer.lr=X",)),
        (["--learning-rate=0.1"], ("--set optimizer.lr=X",)),
        (["--alpha", "0.3"], ("--set loss.alpha=X",)),
        (["--batchsize", "8"], ("--batch-size",)),
        (["--momentum", "0.9"], ("--set branches.momentum=X", "--set optimizer.momentum=X")),
    ],
)
def test_an_unknown_flag_is_answered_with_the_one_meant(given, meant, capsys):
    said = supancl(capsys, "pretrain", "digits.supsiam", *given)
    assert_refused(said, " ".join(given), *meant, "supancl pretrain --help")


def test_a_flag_like_none_is_answered_with_the_help(capsys):
    said = supancl(capsys, "pretrain", "digits.supsiam", "--frobnicate", "3")
    assert_refused(said, "--frobnicate 3", "supancl pretrain --help")


def test_a_folder_without_its_flag_is_answered_with_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "photos")
    assert_refused(supancl(capsys, "pretrain", "digits.supsiam", "photos"), "did you mean --data photos?")
    assert "did you mean" not in supancl(capsys, "pretrain", "digits.supsiam", "nowhere").err


def test_what_is_required_is_named_as_in_the_help(capsys):
    for words, name in {"data show": "SOURCE", "data where": "NAME", "alpha": "RECIPE"}.items():
        assert f"required: {name} (see" in supancl(capsys, *words.split()).err
        assert name in supancl(capsys, *words.split(), "--help").out


def test_a_run_without_its_encoder_or_with_a_damaged_one_names_the_way_to_get_it(tmp_path, capsys):
    class_folders(tmp_path / "data")
    run = tmp_path / "a run"
    said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--data", tmp_path / "data", "--out", run)
    assert said.code == 0, said.err
    encoder = run / "encoder.safetensors"
    weights = encoder.read_bytes()
    for damage in (encoder.unlink, lambda: encoder.write_bytes(weights[:500])):
        damage()
        assert_refused(supancl(capsys, "evaluate", "knn", run), f"supancl pretrain --resume --out '{run}'")
        assert supancl(capsys, "pretrain", "--resume", "--out", run).code == 0
        assert encoder.read_bytes() == weights


def test_commands_without_set_name_flags_alone(capsys):
    said = supancl(capsys, "evaluate", "knn", "run", "--lr", "0.1")
    assert "--set" not in said.err
    assert_mentions(
        supancl(capsys, "evaluate", "knn", "run", "--metrics", "l2").err, "--metrics", "did you mean --metric?"
    )


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["knn", "run"], ("'knn'", "'evaluate knn'")),
        (["exprot", "run"], ("'exprot'", "'export'")),
        (["train"], ("'train'", "'pretrain'")),
        (["evaluate"], ("fewshot, finetune, knn, linear, suite, transfer, variance",)),
        (["data"], ("cache, check, show, where",)),
    ],
)
def test_a_command_that_is_missing_or_elsewhere_is_named(given, meant, capsys):
    said = supancl(capsys, *given)
    assert_refused(said, *meant)
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
            f"evaluate it with: supancl evaluate knn '{run}'" + " --data LABELLED_IMAGES" * (name == "flat")
        )
        content = json.loads((run / "recipe.json").read_text())
        del (
            content["data"]["labelled"],
            content["data"]["classes"],
        )  # of a run whose file does not say, nothing is known
        (run / "recipe.json").write_text(json.dumps(content))
        said = supancl(capsys, "pretrain", "--resume", "--out", run)
        assert said.code == 0, said.err
        assert " ".join(said.out.split()).endswith(f"evaluate it with: supancl evaluate knn '{run}'")
