"""What is kept on disk: the whole state of a run, and the encoder alone.

A checkpoint is written to a temporary file, synced, renamed and given a checksum; the one before it stays. A run has
its files written by a thread (`Writer`) and goes on meanwhile.
Files are read with weights_only: nothing in them is ever executed.
"""

from __future__ import annotations

import copy
import json
import pickle
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from supancl.config import from_json, to_json
from supancl.core.encoders import Encoder, EncoderSpec, UnknownEncoder
from supancl.core.heads import MLP
from supancl.errors import BadInput
from supancl.files import beside, digest, reason, write_atomically, write_text
from supancl.recipes.plugins import way_to_plugin
from supancl.weights.run_folder import RunFolder

SCHEMA_VERSION = 1
KEPT = 2

# schema version -> how its content becomes that of the next one
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Write step-N.pt and its checksum, and remove those before it but one.

    Later ones stay: a run that went back past a damaged one writes over it when it gets there.
    """
    path = folder / f"step-{step:09d}.pt"
    content = {"schema_version": SCHEMA_VERSION, **state}
    write_atomically(path, lambda temporary: _save(temporary, content))
    checksum = digest(path)
    write_text(path.with_suffix(".sha256"), checksum)
    for old in [each for each in checkpoints(folder) if each.name <= path.name][:-KEPT]:
        old.unlink(missing_ok=True)
        old.with_suffix(".sha256").unlink(missing_ok=True)
    return path


class Writer:
    """Saves as the functions here do, by a thread: what is given is copied at once, so that training may go on.

    Of each kind one file is under way; the next one waits for it. What could not be written is told by the next save,
    or by `wait`. Leaving the `with` block waits for the last file, whatever it is left for.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")  # one: files keep their order
        self._pending: dict[str, Future[object]] = {}
        self._copies: dict[str, HostCopy] = {}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *reason: object) -> None:
        self._thread.shutdown(wait=True)

    def save(self, folder: Path, step: int, state: Mapping[str, Any]) -> None:
        """`save_checkpoint` of the state as it is now."""
        self._hand_over("checkpoint", state, lambda kept: save_checkpoint(folder, step, kept))

    def save_encoder(self, path: Path, encoder: Encoder, classes: tuple[str, ...], recipe: str) -> None:
        """`save_encoder` of the encoder as it is now."""
        metadata = _metadata(encoder, classes, recipe)
        self._hand_over("encoder", encoder.body.state_dict(), lambda kept: save_safetensors(path, kept, metadata))

    def save_projector(self, path: Path, projector: nn.Module, recipe: str) -> None:
        """`save_projector` of the projector as it is now."""
        metadata = _projector_metadata(projector, recipe)
        self._hand_over("projector", projector.state_dict(), lambda kept: save_safetensors(path, kept, metadata))

    def wait(self) -> None:
        """Until everything is on disk; raises what kept it from getting there."""
        for kind in list(self._pending):
            self._pending.pop(kind).result()

    def _hand_over(self, kind: str, content: Mapping[str, Any], write: Callable[[Any], object]) -> None:
        for other, future in list(self._pending.items()):
            if other == kind or future.done():
                self._pending.pop(other).result()
        copied = self._copies.setdefault(kind, HostCopy())
        kept = copied.of(content)
        self._pending[kind] = self._thread.submit(self._write, copied, write, kept)

    @staticmethod
    def _write(copied: HostCopy, write: Callable[[Any], object], kept: Any) -> None:
        copied.arrive()
        write(kept)


class HostCopy:
    """Nested containers of tensors, copied into host memory that serves again for the next one.

    From a GPU the copy is queued behind the steps before it into pinned memory, and nobody but `arrive` waits for it.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[str, ...], Tensor] = {}
        self._copied: list[torch.cuda.Event] = []

    def of(self, content: Any) -> Any:
        devices: set[torch.device] = set()
        kept = self._kept(content, (), devices)
        self._copied = [torch.cuda.current_stream(device).record_event() for device in devices]
        return kept

    def arrive(self) -> None:
        """Wait until the copy is there."""
        for event in self._copied:
            event.synchronize()

    def _kept(self, value: Any, place: tuple[str, ...], devices: set[torch.device]) -> Any:
        if isinstance(value, Tensor):
            if value.is_cuda:
                devices.add(value.device)
            return self._at(place, value.detach()).copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            kept = copy.copy(value)  # a state dict has its versions beside its entries
            kept.update({key: self._kept(item, (*place, str(key)), devices) for key, item in value.items()})
            return kept
        if isinstance(value, (list, tuple)):
            return type(value)(self._kept(item, (*place, str(row)), devices) for row, item in enumerate(value))
        return value

    def _at(self, place: tuple[str, ...], value: Tensor) -> Tensor:
        memory = self._memory.get(place)
        if memory is None or memory.shape != value.shape or memory.dtype != value.dtype:
            memory = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)  # laid out alike
            self._memory[place] = memory
        return memory


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def load_newest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest sound checkpoint, or None where there is none, and a line for each damaged one passed over."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return load_checkpoint(path), damaged
        except Damaged as error:
            damaged.append(str(error))
    if damaged:
        raise BadInput(f"no sound checkpoint is left: {'; '.join(damaged)}; to start again at step 0, remove {folder}")
    return None, damaged


class Damaged(BadInput):
    """A checkpoint whose bytes are not what was written."""


class Refused(BadInput):
    """A file whose loading could run code; `held` is the name in it that torch did not accept, where it says so."""

    def __init__(self, message: str, held: str = "") -> None:
        super().__init__(message)
        self.held = held


def load_checkpoint(path: Path) -> dict[str, Any]:
    try:
        expected = path.with_suffix(".sha256").read_text(errors="replace").strip()
    except OSError:
        expected = ""  # a crash between the two files: the content itself decides
    if expected and path.is_file() and digest(path) != expected:
        raise Damaged(f"checkpoint {path} is damaged (its checksum differs)")
    content = load_tensors(path)
    version = content.get("schema_version")
    if not isinstance(version, int):
        raise BadInput(f"{path}: not a checkpoint of supancl (no schema_version); remove it, or name another --out")
    if version > SCHEMA_VERSION:
        raise BadInput(f"{path} was written by a newer supancl (schema {version}, known {SCHEMA_VERSION}); upgrade")
    while version < SCHEMA_VERSION:
        if version not in MIGRATIONS:
            raise BadInput(
                f"{path} has schema {version}, which no supancl has written; remove it, or name another --out"
            )
        content = MIGRATIONS[version](content)
        version += 1
    return content


def load_tensors(path: Path, allowed: Sequence[type] = ()) -> dict[str, Any]:
    """A .pt, .pth or .ckpt file of tensors and plain containers; anything that would run code is refused.

    `allowed`: further classes, each known to do nothing when it is loaded.
    """
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(allowed)):
            warnings.simplefilter("ignore")  # torch remarks on what it then refuses
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise Damaged(f"checkpoint {path} cannot be read ({reason(error)})") from None
    except Exception as error:  # there is no end to the ways in which a torn pickle fails
        if _could_run_code(path, error):
            named = re.search(r"GLOBAL ([\w.]+)", str(error))
            raise Refused(
                f"{path} holds more than tensors and plain containers and is not opened, because loading "
                "it could run code; save its state dict alone",
                named[1] if named else "",
            ) from None
        with open(path, "rb") as file:
            looks_right = file.read(2).startswith((b"\x80", b"PK"))  # a pickle, or a zip of one
        torn = looks_right and not isinstance(error, pickle.UnpicklingError)
        why = reason(error) if torn else "it is no file of tensors"
        raise Damaged(f"checkpoint {path} is damaged ({why})") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path}: not a checkpoint (it holds a {type(content).__name__}); give a state dict")
    return content


def _could_run_code(path: Path, error: Exception) -> bool:
    """Whether torch refused a name or an instruction that a file of tensors has no need of."""
    text = str(error)
    if any(word in text for word in ("nsupported global", "nsupported GLOBAL", "nsupported class", "TorchScript")):
        return True
    with open(path, "rb") as file:
        return "Unsupported operand" in text and file.read(2).startswith((b"\x80", b"PK"))  # a pickle, or a zip of one


def _save(path: Path, content: dict[str, Any]) -> None:
    with open(path, "wb") as file:  # given a path, torch does not tell why it could not write
        torch.save(content, file)


# --- safetensors files ------------------------------------------------------------------------------------------------


def save_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata so that equal content gives equal bytes, and nobody sees half a file."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}

    def write(temporary: Path) -> None:
        save_file(plain, temporary, metadata=dict(metadata))
        _sort_header(temporary)

    write_atomically(path, write)


def _sort_header(file: Path) -> None:
    """Rewrite the header of a safetensors file in one order; the library takes a hash map's, which changes.

    A file is the header's length (8 bytes), the header as JSON padded with spaces, and the tensors at the offsets it
    states, which count from its end: as long as the length stays, nothing else moves.
    """
    with open(file, "r+b") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header: dict[str, Any] = json.loads(opened.read(length))
        metadata = dict(sorted(header.pop("__metadata__").items()))
        tensors = sorted(header.items(), key=lambda item: (item[1]["data_offsets"], item[0]))
        entries = {name: {key: entry[key] for key in ("dtype", "shape", "data_offsets")} for name, entry in tensors}
        text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > length:
            raise RuntimeError(f"the header of {file.name} grew from {length} to {len(text)} bytes when it was sorted")
        opened.seek(8)
        opened.write(text.ljust(length))


# --- the encoder alone ------------------------------------------------------------------------------------------------


def save_encoder(path: Path, encoder: Encoder, classes: tuple[str, ...], recipe: str) -> None:
    """encoder.safetensors: weights under the architecture's own names, and all that is needed to use them."""
    weights = {name: value.detach().cpu().clone() for name, value in encoder.body.state_dict().items()}
    save_safetensors(path, weights, _metadata(encoder, classes, recipe))


def _metadata(encoder: Encoder, classes: tuple[str, ...], recipe: str) -> dict[str, str]:
    return {
        "schema_version": str(SCHEMA_VERSION),
        "encoder": json.dumps(to_json(encoder.spec)),
        "name": encoder.spec.name,
        "width": str(encoder.width),
        "input_size": str(encoder.size),
        "mean": json.dumps(encoder.mean),
        "std": json.dumps(encoder.std),
        "classes": json.dumps(classes),
        "recipe": recipe,
    }


def save_projector(path: Path, projector: nn.Module, recipe: str) -> None:
    """projector.safetensors: the weights of the online projector, and the spec of its layers."""
    weights = {name: value.detach().cpu().clone() for name, value in projector.state_dict().items()}
    save_safetensors(path, weights, _projector_metadata(projector, recipe))


def _projector_metadata(projector: nn.Module, recipe: str) -> dict[str, str]:
    head, width = MLP.describe(projector.state_dict())
    return {
        "schema_version": str(SCHEMA_VERSION),
        "head": json.dumps(to_json(head)),
        "input_width": str(width),
        "recipe": recipe,
    }


def load_projector(path: Path | str) -> nn.Sequential:
    """The online projector of a run folder, or of the run whose encoder.safetensors this is, in eval mode.

    Runs of 0.1.0 wrote no projector.safetensors; theirs is taken from the checkpoint that the encoder is from.
    """
    folder = Path(path).parent if Path(path).name == "encoder.safetensors" else Path(path)
    file = folder / "projector.safetensors"
    if file.exists():
        weights, (described, width) = _read_described(file, "a projector", "head", "input_width")
        head = from_json(MLP, described, "head")
    else:
        weights = _projector_of_checkpoint(folder)
        head, width = MLP.describe(weights)
    projector = head.build(width)
    try:
        projector.load_state_dict(weights)
    except RuntimeError:
        raise BadInput(f"{file}: its tensors do not fit its description; copy it again") from None
    return projector.eval()


def _projector_of_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Of the newest checkpoint that holds the same encoder as encoder.safetensors does."""
    encoder = read_safetensors(encoder_file(folder))[0] if (folder / "encoder.safetensors").exists() else {}
    for file in reversed(checkpoints(folder / "checkpoints")):
        try:
            state = load_checkpoint(file)["branches"]
        except Damaged:
            continue
        if encoder and all(
            torch.equal(state.get(f"encoder.body.{name}", value.new_empty(0)), value) for name, value in encoder.items()
        ):
            return {
                name.removeprefix("projector."): value for name, value in state.items() if name.startswith("projector.")
            }
    raise BadInput(
        f"{folder} has no projector.safetensors, and no checkpoint with the projector of its encoder; name "
        "a run folder that has, finish the run with --resume, or choose another --layer"
    )


def load_encoder(path: Path | str) -> Encoder:
    """The encoder of a run folder or of an encoder.safetensors, in eval mode."""
    file = encoder_file(Path(path))
    weights, (described,) = _read_described(file, "an encoder", "encoder")
    try:
        encoder = from_json(EncoderSpec, described, "encoder").build()
    except UnknownEncoder as error:
        raise BadInput(f"{file}: {error} ({way_to_plugin(RunFolder(file.parent).read_plugins())})") from None
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    load_weights(encoder, weights, file)
    return encoder.eval()


def _read_described(file: Path, what: str, *keys: str) -> tuple[dict[str, Tensor], list[Any]]:
    """The weights in a file, and what its metadata say under these keys."""
    weights, metadata = read_safetensors(file)
    try:
        version, described = int(metadata["schema_version"]), [json.loads(metadata[key]) for key in keys]
    except (KeyError, ValueError, RecursionError):
        raise BadInput(f"{file}: no description of {what} in it; was it written by supancl?") from None
    if version > SCHEMA_VERSION:
        raise BadInput(f"{file} was written by a newer supancl (schema {version}, known {SCHEMA_VERSION}); upgrade")
    return weights, described


def initialize(encoder: Encoder, path: Path | str) -> None:
    """Fill an encoder from a run folder, an encoder.safetensors or a state dict (.pt, .pth) of its architecture."""
    file = encoder_file(Path(path))
    if file.suffix == ".safetensors":
        weights, _ = read_safetensors(file)
    else:
        try:
            content = load_tensors(file)
        except Damaged as error:
            raise BadInput(f"{error}; copy it again, or give another --init") from None
        inner = content.get("state_dict", content)
        if not isinstance(inner, dict):
            raise BadInput(f"{file}: its state_dict is of type {type(inner).__name__}; give a dict of tensors by name")
        weights = {str(name): value for name, value in inner.items() if isinstance(value, Tensor)}
    load_weights(encoder, weights, file)


def encoder_file(path: Path) -> Path:
    if path.is_dir():
        file = path / "encoder.safetensors"
        if not file.exists():
            if (path / "recipe.json").exists():
                raise BadInput(f"{path} holds no encoder.safetensors; has the run finished its first epoch?")
            below = next((each.parent for each in sorted(path.glob("*/encoder.safetensors"))), None)
            raise BadInput(
                f"{path} is no run folder: no encoder.safetensors in it"
                + (f"; did you mean {str(below)!r}?" if below else "; give a run folder or an encoder.safetensors")
            )
        return file
    if not path.exists():
        raise BadInput(f"no file {path}{beside(path) or '; give a run folder or an encoder.safetensors'}")
    return path


def read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        file.open("rb").close()  # safetensors says that a file it may not open is not there
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({reason(error)}); check its permissions") from None
    except SafetensorError as error:
        raise BadInput(
            f"{file}: not a safetensors file ({reason(error)}); copy it again, or where a "
            "run wrote it, have it written anew by going on with that run: --resume"
        ) from None


def readable(file: Path) -> bool:
    """Whether a safetensors file is there and whole."""
    try:
        read_safetensors(file)
    except BadInput:
        return False
    return True


def load_weights(encoder: Encoder, weights: dict[str, Tensor], file: Path) -> None:
    """Fill an encoder from tensors under its architecture's own names; none may lack, and none be left over."""
    own = encoder.body.state_dict()
    # a classifier on top is not part of the encoder
    weights = {name: value for name, value in weights.items() if name in own or not name.startswith(("fc.", "head."))}
    for name, value in own.items():
        if name not in weights:
            raise BadInput(
                f"{file} has no tensor {name!r}, which encoder {encoder.spec.name!r} needs; is it another architecture?"
            )
        if weights[name].shape != value.shape:
            raise BadInput(
                f"{file}: tensor {name!r} is {tuple(weights[name].shape)}, encoder {encoder.spec.name!r} "
                f"has {tuple(value.shape)}; is it another architecture?"
            )
    extra = sorted(set(weights) - set(own))
    if extra:
        raise BadInput(
            f"{file} has a tensor {extra[0]!r} that encoder {encoder.spec.name!r} does not have; "
            "is it another architecture?"
        )
    encoder.body.load_state_dict(weights)
