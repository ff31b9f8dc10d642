"""The 20 superclasses of CIFAR-100, with five classes each (https://www.cs.toronto.edu/~kriz/cifar.html)."""

from __future__ import annotations

from collections.abc import Sequence

from supancl.errors import NoLevels, did_you_mean

SUPERCLASSES: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
SUPERCLASS_OF = {name: superclass for superclass, names in SUPERCLASSES.items() for name in names}
CLASSES = tuple(sorted(SUPERCLASS_OF))  # in label order


def cifar100_paths(classes: Sequence[str], location: str) -> list[str]:
    """SUPERCLASS/CLASS for each class; the numbers 0 to 99 are the classes in CIFAR-100's order.

    >>> cifar100_paths(["apple", "wolf"], "data")
    ['fruit_and_vegetables/apple', 'large_carnivores/wolf']
    """
    by_number = {str(number): name for number, name in enumerate(CLASSES)}
    names = [by_number[name] for name in classes] if set(classes) == set(by_number) else classes
    unknown = next((name for name in names if name not in SUPERCLASS_OF), None)
    if unknown is not None:
        raise NoLevels(
            f"{location}: {unknown[:80]!r} is no class of CIFAR-100{did_you_mean(unknown, CLASSES)}; data.hierarchy = "
            "cifar100 is for its classes by name, or for all 100 by number"
        )
    return [f"{SUPERCLASS_OF[name]}/{name}" for name in names]
