"""Rules of auto.METHOD: what they choose, and that a user's choice is left alone."""

from __future__ import annotations

import pytest

from supancl import recipe
from supancl.data.opening import Survey
from supancl.recipes.auto import METHODS, RULES, TO_BE_CHOSEN, fit_recipe, is_to_be_fitted, open_settings

PHOTOS = Survey(images=540, labelled=108, classes=6, side=64)
CIFAR = Survey(images=45_000, labelled=45_000, classes=100, side=32)
LARGE = Survey(images=200_000, labelled=200_000, classes=5_000, side=375)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("data", [PHOTOS, CIFAR, LARGE, Survey(12, 12, 2, 8), Survey(100, 0, 0, 640)])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_setting_is_chosen_with_a_reason(method, data, on_gpu):
    fitted = fit_recipe(recipe(f"auto.{method}"), data, on_gpu)
    assert not is_to_be_fitted(fitted)
    assert TO_BE_CHOSEN not in {source for _, source in fitted.fields().values()}
    assert fitted.encoder.size == fitted.views.size <= max(data.side, 32)
    assert 2 <= fitted.train.batch_size <= max(data.images, 2)
    assert fitted.schedule.warmup_epochs <= fitted.train.epochs / 2


def test_small_photographs_on_a_cpu_and_on_a_gpu():
    on_cpu, on_gpu = (fit_recipe(recipe("auto.supsiam"), PHOTOS, where) for where in (False, True))
    assert (on_cpu.encoder.name, on_gpu.encoder.name) == ("cnn", "cifar-resnet18")
    assert (on_cpu.encoder.width, on_gpu.encoder.width) == (256, None)
    assert (on_cpu.views.size, on_cpu.train.batch_size, on_cpu.pool.size) == (32, 32, 256)
    assert on_cpu.train.epochs < on_gpu.train.epochs
    more = fit_recipe(recipe("auto.supsiam"), Survey(images=5_000, labelled=108, classes=6, side=64), on_gpu=False)
    assert (more.encoder.name, more.views.size) == ("resnet18", 64)


def test_many_classes_get_prototypes_and_large_images_a_large_encoder():
    fitted = fit_recipe(recipe("auto.supsiam"), LARGE, on_gpu=True)
    assert (fitted.pool.kind, fitted.encoder.name, fitted.views.size) == ("prototypes", "resnet50", 224)
    assert fit_recipe(recipe("auto.supmoco"), LARGE, on_gpu=True).pool.kind == "queue"


def test_what_the_user_names_is_left_alone_and_later_rules_follow_it():
    asked = recipe("auto.supsiam").with_set({"views.size": 32, "train.batch_size": 8, "train.epochs": 30})
    fitted = fit_recipe(asked, PHOTOS, on_gpu=False)
    assert (fitted.views.size, fitted.train.batch_size, fitted.train.epochs) == (32, 8, 30)
    assert (fitted.encoder.name, fitted.schedule.warmup_epochs, fitted.views.blur) == ("cnn", 3, 0.0)
    assert "views.size" not in open_settings(asked)
    named = fit_recipe(recipe("auto.supsiam").with_set({"encoder.name": "resnet18"}), PHOTOS, on_gpu=False)
    assert (named.views.size, named.encoder.width, named.train.epochs) == (64, None, 100)


def test_short_epochs_are_checked_and_saved_less_often():
    small, large = (fit_recipe(recipe("auto.supsiam"), data, on_gpu=True).train for data in (PHOTOS, CIFAR))
    assert small.monitor_every == small.checkpoint_epochs > 5
    assert small.monitor_every * (PHOTOS.images // small.batch_size) <= 200
    assert (large.monitor_every, large.checkpoint_epochs) == (1, 1)


def test_other_recipes_are_not_touched():
    assert fit_recipe(recipe("cifar100.supsiam"), PHOTOS, on_gpu=True) == recipe("cifar100.supsiam")
    assert open_settings(recipe("cifar100.supsiam")) == []
    assert set(RULES) <= set(recipe("auto.semi").fields())
