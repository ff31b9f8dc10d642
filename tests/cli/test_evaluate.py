"""`supancl evaluate` and `embed` as they are typed: what they print, write and refuse."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from supancl.cli import main
from supancl.core.encoders import EncoderSpec
from supancl.weights.encoder_file import save_encoder
from tests.data.benchmark_trees import BUILDERS
from tests.evaluate.made import bright, encoder, run_folder, source
from tests.files import archive, assert_mentions, assert_one_line, assert_refused, noise, supancl


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """An epoch on the digits."""
    out = tmp_path_factory.mktemp("evaluate") / "run"
    assert (
        main(
            [
                "pretrain",
                "digits.supsiam",
                "--epochs",
                "1",
                "--device",
                "cpu",
                "--out",
                str(out),
                "--quiet",
                "--set",
                "encoder.width=16",
                "--set",
                "train.batch_size=128",
            ]
        )
        == 0
    )
    return out


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in: two seeds of a recipe, another one, a source with all splits, and data sets that are not
    whole."""
    monkeypatch.chdir(tmp_path)
    for name, seed, alpha in (("run0", 0, 0.5), ("run1", 1, 0.5), ("other", 0, 0.25)):
        run_folder(tmp_path / name, seed, loss__alpha=alpha)
    source(tmp_path / "x.npz", train=60, val=30, test=30)
    (tmp_path / "root").mkdir()
    return tmp_path


def one_line(said, code: int = 2) -> str:
    assert said.code == code, said.err
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    return lines[0].removeprefix("supancl: ")


def in_json(said) -> dict:
    assert said.code == 0, said.err
    return json.loads(said.out)


# --- on a real run ----------------------------------------------------------------------------------------------------


def test_a_run_that_was_not_trained_to_its_end_is_judged_and_said_to_be_so(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    assert supancl(capsys, "evaluate", "knn", run).err == ""
    log = run / "metrics.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if '"train"' in line))
    assert_one_line(supancl(capsys, "evaluate", "knn", run).err, "warning", run, "epoch 1", "encoder")


@pytest.mark.parametrize("damage", [b"\x00\x00}\n", b"\xff\xfe}\n", b'{"kind": "train", "step": 999}\n', b"[]\n{}\n"])
def test_a_damaged_line_of_the_log_does_not_keep_a_run_from_being_judged(damage, trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    with open(run / "metrics.jsonl", "ab") as log:
        log.write(damage)
    said = supancl(capsys, "evaluate", "knn", run)
    assert said.code == 0
    assert_one_line(said.err, "warning", run, "log", "damaged")


def test_every_protocol_on_a_run_and_its_own_data(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    said = supancl(capsys, "evaluate", "knn", run, "--k", "5,20")
    assert [line.split(":")[0] for line in said.out.splitlines()[-4:-2]] == ["k-NN (k = 5)", "k-NN (k = 20)"]
    assert "450 images, 1347 references, 10 classes" in said.out
    said = supancl(capsys, "evaluate", "linear", run)
    assert said.out.splitlines()[-3].startswith("linear (ridge weights ")
    words = ("--probe", "sgd", "--epochs", "2", "--augmented", "--no-baselines")
    said = supancl(capsys, "evaluate", "linear", run, *words)
    assert said.out.splitlines()[-1].startswith("linear (2 epochs of SGD): ")
    said = supancl(capsys, "evaluate", "variance", run)
    assert "450 held-out images" in said.out
    assert "widest classes: " in said.out
    said = supancl(capsys, "evaluate", "transfer", run, "--data", "digits")
    assert said.out.splitlines()[-5].split() == ["Encoder", "digits"]  # one encoder has no rank
    assert (said.err, said.out.count("*")) == ("", 0)
    said = supancl(capsys, "evaluate", "fewshot", run, "--data", "digits", "--episodes", "20")
    assert said.out.count("Encoder") == said.out.count("episodes: digits 450 images, 16 queries a class") == 2
    said = supancl(capsys, "evaluate", "finetune", run, "--epochs", "1", "--lr", "0.1")
    assert said.out.splitlines()[-3].startswith("fine-tuned (lr 0.1, 1 epoch): ")
    kept = {path.stem: json.loads(path.read_text()) for path in (run / "evaluate").iterdir()}
    # transfer and few-shot are named by their data, the others are on the run's own
    assert set(kept) == {
        "knn-k5",
        "linear",
        "linear-sgd-augmented-e2",
        "variance",
        "transfer-digits",
        "fewshot-digits-5w1s-ep20",
        "fewshot-digits-5w5s-ep20",
        "finetune-e1-lr0.1",
    }
    assert kept["transfer-digits"]["images"] == [1078, 269, 450]  # tested on what pretraining held out
    assert kept["fewshot-digits-5w5s-ep20"]["images"] == 450
    assert (kept["transfer-digits"]["cut_off"], kept["linear"]["cut_off"]) == (False, False)
    conditions = {"protocol", "encoder", "layer", "normalize", "seconds", "hardware", "versions", "commit"}
    assert all(result.keys() >= conditions for result in kept.values())


def test_features_in_a_file_are_those_of_every_split(place, capsys):
    said = supancl(capsys, "embed", "run0", "--data", "x.npz", "--out", "f.npz", "--normalize", "--json", "-")
    assert in_json(said)["splits"] == {"train": 60, "val": 30, "test": 30}
    with np.load("f.npz") as found:
        assert set(found.files) == {
            "class_names",
            *(f"{split}_{kind}" for split in ("train", "val", "test") for kind in ("features", "labels", "names")),
        }
        assert found["train_features"].shape == (60, 12)
        assert np.allclose(np.linalg.norm(found["test_features"], axis=1), 1, atol=1e-5)
        assert found["val_labels"].tolist() == bright(30)[1].tolist()
    deeper = supancl(capsys, "embed", "run0", "--data", "x.npz", "--out", "g.npz", "--layer", "2", "--view", "whole")
    assert deeper.out.splitlines()[-1] == "g.npz: train 60 x 3, val 30 x 3, test 30 x 3"


def test_an_encoder_of_another_library_is_judged_like_a_run(place, capsys):
    """A state dict under somebody else's prefix: the numbers of the same weights in our own file."""
    spec = EncoderSpec("cifar-resnet18", size=32)
    made = encoder(3, spec)
    save_encoder(place / "e.safetensors", made, (), "x")
    foreign = {f"module.encoder_q.{name}": value for name, value in made.body.state_dict().items()}
    foreign |= {
        "module.encoder_q.fc.weight": torch.zeros(128, 512),
        "module.queue": torch.zeros(128, 16),
        "module.encoder_k.conv1.weight": made.body.conv1.weight.detach(),
    }
    torch.save({"state_dict": foreign}, place / "moco.pth.tar")
    source(place / "small.npz", train=15, test=6)
    own, other = (
        in_json(supancl(capsys, "evaluate", "knn", name, "--data", "small.npz", "--k", "3", "--json", "-"))
        for name in ("e.safetensors", "moco.pth.tar")
    )
    assert own["weights"] == other["weights"]
    assert own["accuracy"] == other["accuracy"]


# --- several encoders -------------------------------------------------------------------------------------------------


def test_transfer_of_several_encoders_is_one_table(place, capsys):
    said = supancl(capsys, "evaluate", "transfer", "run0", "run1", "other", "--data", "x.npz", "--json", "-")
    found = in_json(said)
    rows = found["tables"]["transfer"]["rows"]
    assert [row["encoder"] for row in rows] == ["digits.supsiam (run0)", "digits.supsiam (other)"]
    accuracies = [result["accuracy"] for result in found["results"]]
    assert rows[0]["scores"]["x"] == pytest.approx(
        {"mean": np.mean(accuracies[:2]), "runs": 2, "spread": np.std(accuracies[:2], ddof=1)}
    )
    assert rows[1]["scores"]["x"]["mean"] == accuracies[2]
    assert "digits.supsiam (other)" in said.err  # the table goes beside the JSON


@pytest.mark.parametrize("form", ["csv", "json", "latex", "markdown"])
def test_a_table_of_another_format_is_nothing_else(form, place, capsys):
    said = supancl(
        capsys,
        "evaluate",
        "fewshot",
        "run0",
        "other",
        "--data",
        "x.npz",
        "--shots",
        "1",
        "--ways",
        "3",
        "--episodes",
        "9",
        "--format",
        form,
    )
    assert said.code == 0
    if form == "csv":
        rows = list(csv.reader(io.StringIO(said.out)))
        assert rows[0] == ["encoder", "x", "x spread", "x n", "average rank"]
        assert len(rows) == 3
    elif form == "json":
        assert set(json.loads(said.out)) == {"fewshot 3w1s"}
    elif form == "latex":
        assert said.out.startswith(r"\begin{tabular}")
    else:
        assert said.out.startswith("**fewshot 3w1s**\n\n| Encoder | x | Avg. rank |\n| --- | ---: | ---: |\n")


def test_differences_are_told_for_the_same_episodes(place, capsys):
    said = supancl(
        capsys,
        "evaluate",
        "fewshot",
        "run0",
        "run1",
        "other",
        "--data",
        "x.npz",
        "--shots",
        "1,2",
        "--ways",
        "3",
        "--episodes",
        "9",
    )
    told = [line for line in said.out.splitlines() if "(same episodes)" in line]
    assert [line.split(" = ")[0] for line in told] == [
        f"fewshot 3w{shots}s x: digits.supsiam (run0) - digits.supsiam (other)" for shots in (1, 2)
    ]


def test_a_column_of_different_test_images_is_warned_about(place, capsys):
    """A run that held out more than others keeps to that."""
    source(place / "y.npz", train=90)
    run_folder(place / "half", source=str(place / "y.npz"), data__holdout=0.5)
    said = supancl(capsys, "evaluate", "transfer", "half", "other", "--data", "y.npz")
    assert_one_line(said.err, "warning", "y", "transfer", "different images")
    assert supancl(capsys, "evaluate", "transfer", "run0", "other", "--data", "y.npz").err == ""


def test_two_sources_of_one_name_are_two_columns(place, capsys):
    for folder in ("a", "b"):
        (place / folder).mkdir()
        source(place / folder / "x.npz", train=60, test=30 if folder == "a" else 60)
    found = in_json(
        supancl(capsys, "evaluate", "transfer", "run0", "--data", "a/x.npz", "--data", "b/x.npz", "--json", "-")
    )
    assert found["tables"]["transfer"]["datasets"] == ["a-x", "b-x"]
    assert {path.name for path in (place / "run0/evaluate").iterdir()} == {"transfer-a-x.json", "transfer-b-x.json"}


def test_data_sets_of_a_folder_by_name_and_by_what_is_there(place, capsys):
    BUILDERS["pets"](place / "root")
    refused = supancl(capsys, "evaluate", "transfer", "run0", "--root", "root")
    assert one_line(refused).startswith("pets: ")
    said = supancl(capsys, "evaluate", "transfer", "run0", "--root", "root", "--sets", "pets", "--partial")
    assert said.code == 0
    assert_mentions(said.err, "warning", "pets", "incomplete", "published")
    assert said.err.count("\n") == 1
    (remark,) = json.loads((place / "run0/evaluate/transfer-pets.json").read_text())["remarks"]
    assert said.err == f"warning: {remark}\n"


def test_a_copied_run_is_no_further_seed(place, capsys):
    shutil.copytree(place / "run0", place / "copy")
    for protocol in ("transfer", "fewshot"):
        assert_refused(
            supancl(capsys, "evaluate", protocol, "run0", "copy", "--data", "x.npz"),
            "run0",
            "copy",
            "same weights",
            "digits.supsiam",
        )
    assert not (place / "run0/evaluate").exists()


def test_a_folder_with_the_name_of_a_data_set_is_not_taken_for_it(place, capsys):
    (place / "mine").mkdir()
    source(place / "mine/pets.npz", train=60, test=30)
    assert supancl(capsys, "evaluate", "transfer", "run0", "--data", "mine/pets.npz").code == 0
    (file,) = (place / "run0/evaluate").iterdir()
    assert re.fullmatch(r"transfer-pets-[0-9a-f]{6}\.json", file.name)
    assert json.loads(file.read_text())["source"] == str(place / "mine/pets.npz")


def test_data_that_changed_since_the_run_are_refused(place, capsys):
    data = source(place / "own.npz", train=90)
    run_folder(place / "own", source=str(data), described=True)
    assert supancl(capsys, "evaluate", "knn", "own").code == 0
    source(data, train=96)
    for command in (
        ("knn", "own"),
        ("knn", "own", "--data", "own.npz"),
        ("finetune", "own", "--lr", "0.1"),
        ("transfer", "own", "--data", "own.npz"),
    ):
        assert_refused(supancl(capsys, "evaluate", *command), "own", "data", "changed", "87", "81", "--data")
    assert supancl(capsys, "evaluate", "knn", "own", "--data", "x.npz").code == 0
    assert supancl(capsys, "embed", "own", "--data", "own.npz", "--out", "f.npz").code == 0  # nothing is tested


# --- the suite --------------------------------------------------------------------------------------------------------

SUITE = (
    "evaluate",
    "suite",
    "run0",
    "other",
    "--root",
    "root",
    "--out",
    "out",
    "--partial",
    "--episodes",
    "9",
    "--ways",
    "3",
    "--k",
    "3",
)


def test_the_suite_writes_a_page_and_goes_on_where_it_was(place, capsys):
    BUILDERS["pets"](place / "root")
    BUILDERS["omniglot"](place / "root")
    said = supancl(capsys, *SUITE, "--shots", "1", "--json", "result.json")
    assert said.code == 0
    assert said.out.splitlines()[-1] == "page: out/index.html"
    assert "[6/6] other: fewshot 3w1s on omniglot: " in said.out
    found = json.loads((place / "result.json").read_text())
    assert set(found["tables"]) == {"knn", "transfer", "fewshot 3w1s"}
    assert (len(found["results"]), len(found["differences"]), found["failures"]) == (6, 1, [])
    again = supancl(capsys, *SUITE, "--shots", "1")
    assert again.out.count("(saved earlier)") == 6
    more = supancl(capsys, *SUITE, "--shots", "1,2")
    assert (more.out.count("(saved earlier)"), more.out.count("fewshot 3w2s on omniglot: ")) == (6, 2)


def test_a_suite_with_faults_writes_what_it_has_and_says_how_much_is_missing(place, capsys):
    BUILDERS["pets"](place / "root")
    BUILDERS["omniglot"](place / "root")
    said = supancl(capsys, *SUITE, "--shots", "5", "--json", "result.json")
    assert said.code == 2
    assert_mentions(said.err.splitlines()[-1], "2 of 6 results", "warnings", "in out", "same command")
    assert len(json.loads((place / "result.json").read_text())["failures"]) == 2
    assert "Not measured" in (place / "out/index.html").read_text()
    nothing = supancl(capsys, *SUITE, "--shots", "5", "--protocols", "fewshot")
    assert nothing.err.splitlines()[-1].startswith("supancl: nothing could be measured; the first of 2 reasons: ")


# --- bad input --------------------------------------------------------------------------------------------------------

KNN, LINEAR, FEW = ("evaluate", "knn", "run0"), ("evaluate", "linear", "run0"), ("evaluate", "fewshot", "run0")
TRANSFER, TUNE = ("evaluate", "transfer", "run0"), ("evaluate", "finetune", "run0")


@pytest.mark.parametrize(("command", "line"), [
    ((*KNN, "--k", "2.5"), ("--k 2.5", "whole numbers", "1,5")),
    ((*KNN, "--k", "nan"), ("--k nan", "whole numbers", "1,5")),
    ((*KNN, "--k", "5,,"), ("--k 5,,", "whole numbers", "1,5")),
    ((*KNN, "--k", "5,0"), ("--k 0", "at least 1")),
    ((*KNN, "--temperature", "nan"), ("--temperature nan", "above 0")),
    ((*KNN, "--batch-size", "0"), ("--batch-size 0", "at least 1")),
    ((*KNN, "--mean", "a,b"), ("--mean a,b", "numbers", "0.5,0.5,0.5")),
    ((*KNN, "--mean", "inf"), ("--mean inf", "numbers", "0.5,0.5,0.5")),
    ((*KNN, "--data", "nowhere"), ("no data", "nowhere", "path")),
    ((*KNN, "--data", "digits", "--split", "test"),
     ("digits", "no test split", "--split")),
    ((*KNN, "--data", "x.npz", "--layer", "7x"), ("layer '7x'",)),
    ((*LINEAR, "--epochs", "0"), ("--epochs 0", "at least 1")),
    ((*LINEAR, "--lr", "nan"), ("--lr nan", "above 0")),
    ((*LINEAR, "--seed", "-1"), ("--seed -1", "at least 0")),
    ((*LINEAR, "--lr", "1", "--epochs", "3"),
     ("--epochs", "--lr", "--probe sgd")),
    ((*LINEAR, "--data", "x.npz", "--augmented"),
     ("--augmented", "--probe sgd")),
    ((*FEW, "--data", "x.npz", "--ways", "1"), ("--ways 1", "at least 2")),
    ((*FEW, "--data", "x.npz", "--shots", "1,x"), ("--shots 1,x", "1,5")),
    ((*FEW, "--data", "x.npz", "--queries", "0"), ("--queries 0", "at least 1")),
    ((*FEW, "--data", "x.npz", "--episodes", "0"), ("--episodes 0", "at least 1")),
    ((*FEW, "--data", "x.npz"), ("x.npz", "3 classes", "1 image", "5 ways", "--ways", "--shots")),
    ((*FEW, "--data", "x.npz", "--ways", "3", "--shots", "1,200"),  # nothing is measured with one shot first
     ("x.npz", "0 classes", "200 images", "3 ways", "'0'", "'1'", "'2'", "--ways", "--shots")),
    (FEW, ("--data SOURCE", "--root FOLDER", "few-shot")),
    (TRANSFER, ("--data SOURCE", "--root FOLDER", "transfer")),
    ((*TRANSFER, "--sets", "pets"), ("--sets", "--root")),
    ((*TRANSFER, "--root", "root"),
     ("transfer", "root", "supancl data where NAME")),
    ((*TRANSFER, "--root", "rot"), ("no folder", "rot")),
    ((*TRANSFER, "--root", "root", "--sets", "petz"),
     ("petz", "pets", "--plugin FILE")),
    ((*TRANSFER, "--root", "root", "--sets", "pets"), ("pets", "root", "supancl data where pets")),
    ((*TRANSFER, "run0/", "--data", "x.npz"),
     ("run0", "twice")),
    ((*TRANSFER, "nowhere", "--data", "x.npz"), ("no file", "nowhere", "encoder.safetensors",
                                                "torchvision:NAME[@FILE]", "timm:NAME[@FILE]")),
    ((*TUNE, "--layer", "layer1"),
     ("fine-tuning", "--layer", "--normalize")),
    ((*TUNE, "--train-batch", "1"), ("--train-batch 1", "at least 2")),
    ((*TUNE, "--lr", "0.1,0"), ("--lr 0", "above 0")),
    ((*TUNE, "--weight-decay", "-1"), ("--weight-decay -1", "at least 0")),
    ((*TUNE, "--data", "x.npz", "--out", "run1"), ("run1", "exists", "--out")),
    (("evaluate", "suite", "run0", "--root", "root", "--out", "out"),
     ("knn, transfer, fewshot", "root", "supancl data where NAME")),
    (("evaluate", "suite", "run0", "--root", "root", "--out", "out", "--protocols", "knn,linear"),
     ("'linear'", "fewshot, knn, transfer")),
    (("evaluate", "suite", "run0", "--root", "root", "--out", "out", "--k", "0"), ("--k 0", "at least 1")),
    (("evaluate", "suite", "run0", "--root", "root", "--out", "out", "--episodes", "0"),
     ("--episodes 0", "at least 1")),
])  # fmt: skip
def test_what_is_wrong_is_one_line(command, line, place, capsys):
    assert_refused(supancl(capsys, *command), *line)
    assert not (place / "run0" / "evaluate").exists()


def test_classes_that_differ_between_splits_are_one_line(place, capsys):
    images, labels = bright(60)
    archive(
        place / "y.npz",
        train_images=images,
        train_labels=labels,
        test_images=images[labels > 0],
        test_labels=labels[labels > 0],
        class_names=["ant", "bee", "cow"],
    )
    for protocol in (["linear", "--probe", "sgd"], ["transfer"]):
        assert_refused(
            supancl(capsys, "evaluate", *protocol, "run0", "--data", "y.npz"), "y.npz", "ant", "test", "train"
        )
    archive(
        place / "z.npz",
        train_images=images[labels > 0],
        train_labels=labels[labels > 0],
        test_images=images,
        test_labels=labels,
        class_names=["ant", "bee", "cow"],
    )
    assert_refused(supancl(capsys, "evaluate", "transfer", "run0", "--data", "z.npz"), "z.npz", "ant", "test", "train")
    said = supancl(capsys, "evaluate", "knn", "run0", "--data", "z.npz")
    assert said.code == 0
    assert_one_line(said.err, "warning", "z.npz", "ant", "20 test images")


@pytest.mark.parametrize("protocol", ["knn", "linear", "variance"])
def test_a_run_that_held_nothing_out_is_judged_on_the_test_split_of_its_data(protocol, place, capsys):
    source(place / "whole.npz", train=60, test=30)
    words = ["--epochs", "1", "--batch-size", "20", "--set", "data.holdout=0", "--set", "encoder.width=8", "--quiet"]
    assert supancl(capsys, "pretrain", "digits.supsiam", "--data", "whole.npz", *words, "--out", "trained").code == 0
    told = []
    for more in ((), ("--data", "whole.npz")):
        said = supancl(capsys, "evaluate", protocol, "trained", *more, "--json", "found.json")
        assert said.code == 0
        assert "test split" in said.out + said.err
        told.append(json.loads(Path("found.json").read_text()))
        assert (told[-1]["split"], told[-1]["judged"]) == ("test", "test")
    assert [told[0].get(key) for key in ("accuracy", "ratio")] == [told[1].get(key) for key in ("accuracy", "ratio")]
    k = "-k5" if protocol == "knn" else ""  # 20 references per class
    assert {path.stem for path in Path("trained/evaluate").iterdir()} == {f"{protocol}{k}-test"}


def test_classes_too_small_for_an_episode_are_named(place, capsys):
    images, labels = bright(40, classes=4)
    labels[labels == 3] = 2
    labels[:2] = 3
    archive(place / "y.npz", train_images=images, train_labels=labels, class_names=["ant", "bee", "cow", "dog"])
    said = supancl(
        capsys,
        "evaluate",
        "fewshot",
        "run0",
        "--data",
        "y.npz",
        "--ways",
        "3",
        "--shots",
        "2",
        "--episodes",
        "5",
        "--queries",
        "7",
    )
    assert said.code == 0
    assert_mentions(said.err.splitlines()[0], "warning", "y", "1 class", "2 images", "dog")


def test_few_images_for_episodes_are_said_though_no_query_is_missing(place, capsys):
    images, labels = bright(100, classes=5)
    archive(
        place / "photos.npz", test_images=images, test_labels=labels, train_images=images[:5], train_labels=labels[:5]
    )
    said = supancl(capsys, "evaluate", "fewshot", "run0", "--data", "photos.npz", "--episodes", "5", "--shots", "1")
    assert said.err.splitlines() == ["warning: photos: the interval is over episodes of the same 100 images"]


def test_queries_that_were_not_there_are_said_once(place, capsys):
    images, labels = bright(30, classes=5)
    archive(
        place / "photos.npz", test_images=images, test_labels=labels, train_images=images[:5], train_labels=labels[:5]
    )
    said = supancl(
        capsys, "evaluate", "fewshot", "run0", "other", "--data", "photos.npz", "--episodes", "5", "--shots", "1,5"
    )
    assert said.err.splitlines() == [
        f"warning: photos: 6 images a class leave {left}, not 16; the interval is over episodes of the same 30 images"
        for left in ("5 queries at 1 shot", "1 query at 5 shots")
    ]
    assert [line for line in said.out.splitlines() if line.startswith("episodes: ")] == [
        "episodes: photos 30 images, 5 queries a class",
        "episodes: photos 30 images, 1 query a class",
    ]


def test_features_that_are_no_numbers_are_one_line_for_every_protocol(place, capsys):
    broken = encoder()
    with torch.no_grad():
        broken.body[0].weight.mul_(1e38)
        broken.body[3].weight.mul_(1e38)
    save_encoder(place / "e.safetensors", broken, (), "x")
    commands = [
        ("evaluate", protocol, "e.safetensors", "--data", "x.npz")
        for protocol in ("knn", "linear", "variance", "transfer")
    ]
    commands += [
        ("evaluate", "fewshot", "e.safetensors", "--data", "x.npz", "--ways", "2"),
        ("embed", "e.safetensors", "--data", "x.npz", "--out", "f.npz"),
    ]
    for command in commands:
        line = one_line(supancl(capsys, *command))
        assert_mentions(line, "e.safetensors", "features")
        assert_mentions(line, "diverged", "leave that image out")
    assert not (place / "f.npz").exists()


def test_channels_that_do_not_fit_are_one_line(place, capsys):
    four = EncoderSpec("cnn", channels=4, size=8, width=8, mean=(0.5,) * 4, std=(0.5,) * 4)
    save_encoder(place / "e.safetensors", encoder(spec=four), (), "x")
    archive(place / "rgb.npz", train_images=noise(20, 8, 8, 3))
    assert_refused(
        supancl(capsys, "evaluate", "knn", "e.safetensors", "--data", "rgb.npz"), "rgb.npz", "RGB", "cnn", "4 channels"
    )


def test_nothing_is_printed_when_quiet(place, capsys):
    said = supancl(capsys, "evaluate", "transfer", "run0", "--data", "x.npz", "--quiet")
    assert (said.code, said.out, said.err) == (0, "", "")
