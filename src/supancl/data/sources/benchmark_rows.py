"""The benchmarks of the paper's evaluations, one row each: sizes, metric, official layout, where to get them.

Sizes are those of the paper's data table, or the published ones where these differ. `split` is (train, val, test) for
transfer; `images` is the number that few-shot episodes are drawn from: the whole data set (for FC100 the test classes,
for Traffic Signs the test set), as in the paper's table and its released code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from supancl.data.sources import arrays, folder
from supancl.data.sources.arrays import ArrayReader
from supancl.data.sources.folder import FileReader

Metric = Literal["top1", "per_class"]
Use = Literal["transfer", "few-shot", "pretrain"]


@dataclass(frozen=True)
class Benchmark:
    """One data set. `files` and `arrays` map a file (or folder/) that identifies a layout to its reader."""

    title: str
    classes: int
    folders: tuple[str, ...]  # possible names of its folder below ROOT; ROOT may also be that folder
    where: str  # the address: what to download; the layout
    cite: str
    split: tuple[int, int, int] | None = None
    images: int | None = None
    metric: Metric = "top1"
    files: dict[str, FileReader] = field(default_factory=dict)
    arrays: dict[str, ArrayReader] = field(default_factory=dict)
    per_class: tuple[int, int] | None = None  # train and val images per class; the others are test
    class_sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # fewest and most images per class, by split
    class_order: tuple[str, ...] = ()  # label order, unless it is that of the sorted names
    pretraining: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def uses(self) -> tuple[Use, ...]:
        """The protocols it is used for, the main one first."""
        if self.pretraining:
            return ("pretrain",)
        transfer: tuple[Use, ...] = ("transfer",) if self.split else ()
        return (*transfer, "few-shot") if self.images else transfer


_KRIZHEVSKY = "Krizhevsky (2009), Learning multiple layers of features from tiny images"
_CIFAR100 = {"meta": arrays.cifar_python("CIFAR100"), "cifar100.npz": arrays.cifar_npz("cifar100.npz")}
_CIFAR100_WHERE = (
    "https://www.cs.toronto.edu/~kriz/cifar.html: cifar-100-python.tar.gz; cifar-100-python/meta, ..., or cifar100.npz"
)

BENCHMARKS: dict[str, Benchmark] = {
    "cifar10": Benchmark(
        "CIFAR10", 10, ("cifar-10-batches-py",), split=(45000, 5000, 10000), cite=_KRIZHEVSKY,
        arrays={"batches.meta": arrays.cifar_python("CIFAR10"), "cifar10.npz": arrays.cifar_npz("cifar10.npz")},
        where="https://www.cs.toronto.edu/~kriz/cifar.html: cifar-10-python.tar.gz; cifar-10-batches-py/...",
    ),
    "cifar100": Benchmark(
        "CIFAR100", 100, ("cifar-100-python",), split=(45000, 5000, 10000), cite=_KRIZHEVSKY,
        arrays=_CIFAR100, where=_CIFAR100_WHERE,
    ),
    "dtd": Benchmark(
        "DTD (split 1)", 47, ("dtd", "dtd/dtd"), split=(1880, 1880, 1880), images=5640,
        files={"labels/train1.txt": folder.dtd}, cite="Cimpoi et al. (2014), Describing textures in the wild",
        where="https://www.robots.ox.ac.uk/~vgg/data/dtd: dtd-r1.0.1.tar.gz; dtd/{images,labels}",
    ),
    "food101": Benchmark(
        "Food101", 101, ("food-101", "food101"), split=(68175, 7575, 25250), files={"meta/train.json": folder.food101},
        cite="Bossard et al. (2014), Food-101: mining discriminative components with random forests",
        where="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101: food-101.tar.gz; food-101/{images,meta}",
    ),
    "mit67": Benchmark(
        "MIT67", 67, ("mit67", "indoorCVPR_09"), split=(4690, 670, 1340), files={"TrainImages.txt": folder.mit67},
        cite="Quattoni and Torralba (2009), Recognizing indoor scenes",
        where="https://web.mit.edu/torralba/www/indoor.html: indoorCVPR_09.tar, TrainImages.txt, TestImages.txt; "
        "mit67/Images/CLASS/*.jpg, mit67/{TrainImages,TestImages}.txt",
    ),
    "sun397": Benchmark(
        "SUN397 (split 1)", 397, ("SUN397", "sun397"), split=(15880, 3970, 19850),
        files={"Training_01.txt": folder.sun397},
        cite="Xiao et al. (2010), SUN database: large-scale scene recognition from abbey to zoo",
        where="https://vision.princeton.edu/projects/2010/SUN: SUN397.tar.gz, Partitions.zip; "
        "SUN397/a/abbey/*.jpg, SUN397/{Training_01,Testing_01}.txt",
    ),
    "caltech101": Benchmark(
        "Caltech101", 101, ("caltech101", "caltech-101"), split=(2525, 505, 5647), metric="per_class",
        per_class=(25, 5), files={"101_ObjectCategories/": folder.caltech101},
        cite="Fei-Fei et al. (2004), Learning generative visual models from few training examples",
        where="https://data.caltech.edu/records/mzrjq-6wc02: caltech-101.zip, and in it 101_ObjectCategories.tar.gz; "
        "caltech101/101_ObjectCategories/CLASS/*.jpg",
        remarks=("no official split: 25 and 5 images of each class are drawn for train and val, the rest is test",),
    ),
    "cub200": Benchmark(
        "CUB200", 200, ("CUB_200_2011", "CUB_200_2011/CUB_200_2011", "cub200"), split=(4994, 1000, 5794), images=11788,
        metric="per_class", files={"train_test_split.txt": folder.cub200},
        cite="Wah et al. (2011), The Caltech-UCSD Birds-200-2011 dataset",
        where="https://www.vision.caltech.edu/datasets/cub_200_2011: CUB_200_2011.tgz; "
        "CUB_200_2011/images/CLASS/*.jpg, CUB_200_2011/{images,train_test_split}.txt",
        remarks=("the paper's table has 4,990 + 1,000 and 5,794 images, and 11,745 for few-shot",),
    ),
    "dogs": Benchmark(
        "Dogs", 120, ("StanfordDogs", "stanford-dogs", "dogs"), split=(10800, 1200, 8580), metric="per_class",
        files={"train_list.mat": folder.dogs},
        cite="Khosla et al. (2011), Novel dataset for fine-grained image categorization",
        where="http://vision.stanford.edu/aditya86/ImageNetDogs: images.tar, lists.tar; "
        "StanfordDogs/Images/CLASS/*.jpg, StanfordDogs/{train_list,test_list}.mat",
        remarks=("20 of the 120 breeds are classes of ImageNet-100, from whose images these are taken",),
    ),
    "flowers102": Benchmark(
        "Flowers", 102, ("flowers-102", "flowers102", "flowers"), split=(1020, 1020, 6149), images=8189,
        metric="per_class", files={"setid.mat": folder.flowers102},
        cite="Nilsback and Zisserman (2008), Automated flower classification over a large number of classes",
        where="https://www.robots.ox.ac.uk/~vgg/data/flowers/102: 102flowers.tgz, imagelabels.mat, setid.mat; "
        "flowers-102/jpg/*.jpg, flowers-102/{imagelabels,setid}.mat",
    ),
    "pets": Benchmark(
        "Pets", 37, ("oxford-iiit-pet", "pets"), split=(2940, 740, 3669), metric="per_class",
        cite="Parkhi et al. (2012), Cats and dogs",
        files={
            "annotations/trainval.txt": folder.pets, "trainval/Abyssinian/": folder.split_folders("trainval", "test"),
        },
        where="https://www.robots.ox.ac.uk/~vgg/data/pets: images.tar.gz, annotations.tar.gz; "
        "oxford-iiit-pet/{images,annotations}",
    ),
    "aircraft": Benchmark(
        "Aircraft", 100, ("fgvc-aircraft-2013b", "aircraft"), images=10000,
        files={"data/images_variant_train.txt": folder.aircraft},
        cite="Maji et al. (2013), Fine-grained visual classification of aircraft",
        where="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft: fgvc-aircraft-2013b.tar.gz; "
        "fgvc-aircraft-2013b/data",
    ),
    "fc100": Benchmark(
        "FC100", 20, ("cifar-100-python",), images=12000,
        arrays={mark: arrays.fc100(reader) for mark, reader in _CIFAR100.items()},
        cite="Oreshkin et al. (2018), TADAM: task dependent adaptive metric for improved few-shot learning",
        where=_CIFAR100_WHERE,
    ),
    "fungi": Benchmark(
        "Fungi", 1394, ("fgvc_fungi", "fungi"), images=89760, files={"train.json": folder.fungi},
        cite="Schroeder and Cui (2018), FGVCx fungi classification challenge 2018",
        where="https://github.com/visipedia/fgvcx_fungi_comp: fungi_train_val.tgz, train_val_annotations.tgz; "
        "fgvc_fungi/images/CLASS/*.JPG, fgvc_fungi/{train,val}.json",
    ),
    "omniglot": Benchmark(
        "Omniglot", 1623, ("omniglot", "omniglot-py", "omniglot/python"), images=32460,
        files={"images_background/": folder.omniglot},
        cite="Lake et al. (2015), Human-level concept learning through probabilistic program induction",
        where="https://github.com/brendenlake/omniglot: python/{images_background,images_evaluation}.zip; "
        "omniglot/{images_background,images_evaluation}/ALPHABET/CHARACTER/*.png",
    ),
    "traffic-signs": Benchmark(
        "Traffic Signs (GTSRB)", 43, ("gtsrb", "GTSRB"), images=12630,
        files={"GT-final_test.csv": folder.gtsrb, "test/00000/": folder.split_folders("test")},
        cite="Houben et al. (2013), Detection of traffic signs in real-world images",
        where="https://benchmark.ini.rub.de/gtsrb_dataset.html: GTSRB_Final_Test_Images.zip, GTSRB_Final_Test_GT.zip; "
        "gtsrb/GTSRB/Final_Test/Images/*.ppm, gtsrb/GT-final_test.csv",
    ),
    "imagenet100": Benchmark(
        "ImageNet-100", 100, ("imagenet100", "imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"), split=(126689, 5000, 0),
        pretraining=True, files={"train/": folder.imagenet100}, class_sizes={"train": (732, 1300), "val": (50, 50)},
        class_order=folder.imagenet100_classes(),
        cite="Deng et al. (2009), ImageNet; classes of Tian et al. (2019), Contrastive multiview coding",
        where="https://www.image-net.org: ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar; "
        "imagenet/{train,val}/n02869837/*.JPEG, ... (all thousand classes may be there)",
        remarks=("labels follow the order of the class list, not that of the sorted names",),
    ),
}  # fmt: skip

ALIASES = {
    "flowers": "flowers102",
    "food": "food101",
    "caltech": "caltech101",
    "gtsrb": "traffic-signs",
    "imagenet-100": "imagenet100",
}
