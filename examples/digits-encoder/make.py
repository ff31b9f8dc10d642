"""Make this folder's encoder and its card again: `python examples/digits-encoder/make.py` (a minute on one CPU core).

On the same machine and versions the weights are the same bit for bit; elsewhere a figure may differ by an image or two.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import torch

from supancl import (
    __version__,
    embed,
    knn_accuracy,
    linear_accuracy,
    load_encoder,
    open_data,
    pretrain,
    recipe,
    variance,
)

FOLDER = Path(__file__).parent
RECIPE = "digits.supsiam"
CARD = """# Model card: a small encoder of handwritten digits

An example of what a run of supancl leaves: `encoder.safetensors` maps grey images of 16 x 16 pixels to {width} features.
It is here to be looked at and opened, not to be used for anything else.

```python
import supancl

encoder = supancl.load_encoder("examples/digits-encoder")  # the file is in this folder
digits = supancl.recipe("{recipe}")
data = supancl.open_data(digits.data, digits.encoder.channels)
train, held_out = (supancl.embed(encoder, split) for split in (data.train, data.held_out))
print(supancl.knn_accuracy(train, held_out))
```

| | |
|---|---|
| Method | SupSiam (supervised asymmetric non-contrastive learning, Oh and Lee, ICML 2024), alpha = {alpha:g} |
| Recipe | `{recipe}`, {epochs} epochs, batch {batch}, seed {seed}; supancl {version}, torch {torch}, CPU, one thread |
| Command | `python examples/digits-encoder/make.py`, which runs `supancl pretrain {recipe} --device cpu` |
| Encoder | three convolutions with batch norm, {parameters:,} parameters, {kilobytes:.0f} KB |
| Data | scikit-learn's digits (UCI Optical Recognition of Handwritten Digits, test part): {train} images of 8 x 8 pixels to train on, all labelled |
| Licence | MIT, as the package; the data are CC BY 4.0 (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998) |

## Figures

On {held_out} held-out images, which were drawn with a fixed seed, stratified by class, and never trained on. One run with seed {seed}. The
recipe was chosen from four after looking at scores on these same images ([docs/log.md](../../docs/log.md)), so the figures flatter it a little.

| Measure | Value |
|---|---|
| k-NN accuracy (k = 20, cosine, temperature 0.1, against the training images) | {knn:.2f} % |
| Linear probe (L-BFGS on frozen features) | {linear:.2f} % |
| Intra-class variance S_W / S_T of the held-out features | {ratio:.3f} |

## Use and limits

- Intended: tests, tutorials, a first look at the file format (`supancl embed examples/digits-encoder --data digits --out digits.npz`).
- Not intended: reading digits in earnest. The images are 8 x 8 pixels from 13 of 43 writers' forms of the nineties; pictures from a camera or of
  another size, colour or style are outside of what it has seen, and it does not say so: every image gets features.
- Writers are not kept apart between training and held-out images, so the figures say nothing about new writers.
- Nothing in the file is executed when it is opened: it holds tensors and plain text ([SECURITY.md](../../SECURITY.md)).
"""  # noqa: E501


def main() -> None:
    torch.set_num_threads(1)
    digits = recipe(RECIPE).with_set({"train.device": "cpu", "train.monitor_every": 0})
    data = open_data(digits.data, digits.encoder.channels)
    with tempfile.TemporaryDirectory() as temporary:
        run = pretrain(digits, data, Path(temporary) / "run")
        shutil.copyfile(run.folder / "encoder.safetensors", FOLDER / "encoder.safetensors")
    encoder = load_encoder(FOLDER)
    train, held_out = embed(encoder, data.train), embed(encoder, data.held_out)
    card = CARD.format(
        width=encoder.width,
        recipe=RECIPE,
        alpha=getattr(digits.loss, "alpha"),  # noqa: B009 - other losses have none
        epochs=digits.train.epochs,
        batch=digits.train.batch_size,
        seed=digits.train.seed,
        version=__version__,
        torch=torch.__version__,
        parameters=sum(parameter.numel() for parameter in encoder.parameters()),
        kilobytes=(FOLDER / "encoder.safetensors").stat().st_size / 1000,
        train=len(data.train),
        held_out=len(data.held_out),
        knn=knn_accuracy(train, held_out),
        linear=linear_accuracy(train, held_out),
        ratio=variance(held_out).ratio,
    )
    (FOLDER / "README.md").write_text(card, encoding="utf-8")
    print(f"{FOLDER / 'README.md'} and encoder.safetensors written", file=sys.stderr)


if __name__ == "__main__":
    main()
