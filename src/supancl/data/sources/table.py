"""Source: a `.csv` or `.parquet` with the columns path, label (or one column of weights per class) and, optionally,
split; and a copy of a `.csv` with some labels replaced."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from supancl.data.labels import (
    NO_LABEL,
    SEPARATOR,
    LabelSet,
    check_count,
    labels_from_pairs,
    pairs_from_matrix,
    parse_label_set,
)
from supancl.data.spec import DataSpec
from supancl.data.splits import SPLIT_NAMES, SPLITS, Source, make_source
from supancl.data.store.memory import LazyItems
from supancl.errors import BadInput
from supancl.files import check_fits_memory, open_regular, unescape_formula

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".csv", ".parquet")
BLOCK_BYTES = 2**24  # a line of more is refused
CHANGED_FROM = "changed_from"


def list_table(path: Path, column_names: str = "", max_labels: int = DataSpec.max_labels) -> Source:
    """List the images of a table; relative paths start at its folder. `column_names`: image=file,label=species.

    If a label has a ';', every label is one or more names with ';' between them and, where it is not 1, a weight:
    'cat;dog:0.7'. With `max_labels` = 1 every label is one name. Without a column for labels, all others hold the
    weights of a class each.
    """
    import pyarrow as pa
    from pyarrow import compute

    is_csv, names = path.suffix.lower() != ".parquet", parse_columns(column_names)
    try:
        with open_regular(path) as file:
            table, layout = (_read_csv if is_csv else _read_parquet)(file, path, names)
    except (pa.ArrowException, csv.Error, UnicodeDecodeError) as error:
        kind, why = "csv file in UTF-8" if is_csv else "parquet file", str(error).partition("\n")[0][:300]
        raise BadInput(f"{path}: not a {kind} ({why}); put values with a comma in double quotes") from None
    for name in (layout.path, *layout.labels):
        if compute.any(compute.match_substring(table[name], "\n")).as_py():
            raise BadInput(f"{path}: a value spans several lines; close its double quote, and double those inside it")
    paths = table[layout.path].combine_chunks()
    table = table.select([*layout.labels, *filter(None, [layout.split])])  # there may be millions of paths
    if not len(paths) or compute.any(compute.equal(paths, "")).as_py():
        raise BadInput(f"{path}: no image, or a line without a path; write a line path,label[,split] for each")
    folder, remarks = os.path.dirname(path), list[str]()
    items = LazyItems(len(paths), lambda row: os.path.join(folder, str(paths[row])))
    splits = np.zeros(len(paths), np.uint8)
    if layout.split is not None:
        texts, codes = _different(table[layout.split])
        splits = np.array([_split_number(name, path) for name in texts.to_pylist()], np.uint8)[codes]
        if not (splits == SPLITS.index("train")).any():
            raise BadInput(f"{path}: no row has split 'train'; give it to some rows, or remove the column")
        is_held_out = splits != SPLITS.index("train")
        is_divided = compute.is_in(paths, value_set=paths.filter(pa.array(is_held_out)))
        if divided := int((np.array(is_divided) & ~is_held_out).sum()):
            remarks.append(f"{path}: files to train on that are held out too: {divided}")
    if layout.classes:
        weights, order = _weights(table, layout, path, names), np.argsort(layout.classes)
        classes = tuple(layout.classes[column] for column in order)
        labels = labels_from_pairs(pairs_from_matrix(weights[:, order], str(path), 2))
        return Source(items, splits, labels, classes, str(path), remarks=tuple(remarks))
    texts, codes = [""], np.zeros(len(paths), np.int32)
    if layout.labels:
        column, codes = _different(table[layout.labels[0]])
        texts = [unescape_formula(text.strip()) for text in column.to_pylist()]
    if max_labels == 1 or not any(SEPARATOR in text for text in texts):
        sets: list[LabelSet] = [{} if text in ("", *NO_LABEL) else {text: 1.0} for text in texts]
    else:
        parsed = [parse_label_set(text, str(path)) for text in texts]
        check_count(max(map(len, parsed)), max_labels, str(path))
        sets = [{name: weight for name, weight in each.items() if name not in NO_LABEL} for each in parsed]
    return make_source(items, splits, codes, sets, path, remarks=tuple(remarks))


class TableLayout(NamedTuple):
    """The columns of a table. `classes` is empty, or the label is in one column for each of these classes."""

    path: str
    labels: tuple[str, ...]
    split: str | None
    classes: tuple[str, ...] = ()

    def wanted(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys([self.path, *self.labels, *([self.split] if self.split else [])]))


def _read_csv(file: io.BufferedReader, path: Path, names: Mapping[str, str]) -> tuple[pa.Table, TableLayout]:
    """The columns that are needed, as texts. A line longer than a block is refused, whatever is behind it."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    first = next(csv.reader([file.readline(BLOCK_BYTES).decode("utf-8-sig")]), [])
    header = [name.strip() for name in first]
    layout = find_columns(header, path, names)
    texts = dict.fromkeys(header, pa.large_string())
    options = arrow.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=header)
    convert = arrow.ConvertOptions(column_types=texts, include_columns=layout.wanted(), strings_can_be_null=False)
    if not file.peek(1):
        return pa.table({name: pa.array([], pa.large_string()) for name in layout.wanted()}), layout
    return arrow.read_csv(file, options, convert_options=convert), layout


def _read_parquet(file: io.BufferedReader, path: Path, names: Mapping[str, str]) -> tuple[pa.Table, TableLayout]:
    """The same of a parquet file. Few bytes may be many repeated values."""
    import pyarrow as pa
    from pyarrow import compute, parquet

    metadata = parquet.read_metadata(file)
    layout = find_columns(list(metadata.schema.names), path, names)
    wanted = layout.wanted()
    nbytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    check_fits_memory(nbytes + 16 * metadata.num_rows * len(wanted), str(path), "divide it")
    file.seek(0)
    table = parquet.read_table(file, columns=wanted, read_dictionary=wanted, use_threads=False)
    columns = {}
    for name in wanted:
        column = table[name].combine_chunks()
        if pa.types.is_dictionary(column.type):
            lengths = compute.binary_length(column.dictionary).take(column.indices)
            check_fits_memory(compute.sum(lengths).as_py() or 0, str(path), "divide it")
            column = compute.cast(column.dictionary, pa.large_string()).take(column.indices)
        columns[name] = compute.fill_null(compute.cast(column, pa.large_string()), "")
    return pa.table(columns), layout


def _different(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """The different values of a column, and which of them is in each row."""
    encoded = column.dictionary_encode().combine_chunks()
    return encoded.dictionary, np.array(encoded.indices)


def _weights(table: pa.Table, layout: TableLayout, path: Path, names: Mapping[str, str]) -> np.ndarray:
    """(N, C): the weights in the columns of the classes; -1 in the row of an unlabelled image."""
    import pyarrow as pa
    from pyarrow import compute

    columns = []
    for name in layout.labels:
        texts = compute.utf8_trim_whitespace(table[name])
        try:
            weights = compute.cast(compute.if_else(compute.equal(texts, ""), None, texts), pa.float64())
        except pa.ArrowInvalid as error:
            raise BadInput(f"{path}: column {name!r} holds no weight of a class ({error}); name the columns") from None
        columns.append(weights.to_numpy())
    matrix = np.stack(columns, axis=1)
    if "label" not in names and (matrix > 1).any():  # a width of 640 is no weight
        raise BadInput(
            f"{path}: columns {', '.join(layout.classes)[:200]} hold no weights of classes; name the columns"
        )
    matrix[np.isnan(matrix).all(1)] = -1
    return matrix


def _split_number(text: str, path: Path) -> int:
    split = text.strip().lower() or "train"
    if split not in SPLIT_NAMES:
        raise BadInput(f"{path}: split {split!r} is unknown; use train, val or test")
    return SPLITS.index(SPLIT_NAMES[split])


# --- columns ----------------------------------------------------------------------------------------------------------


def parse_columns(text: str) -> dict[str, str]:
    """The name in the table of each column that `text` names; `image` and `path` mean the same.

    label=cat+dog names one column per class.

    >>> parse_columns("image=file,label=species")
    {'path': 'file', 'label': 'species'}
    """
    pairs = [[word.strip() for word in pair.partition("=")[::2]] for pair in filter(None, text.split(","))]
    names = {"path" if column == "image" else column: name for column, name in pairs}
    if not set(names) <= {"path", "label", "split"} or not all(names.values()) or len(names) < len(pairs):
        raise BadInput(f"data.columns = {text}: write it as in image=file,label=species,split=part")
    return names


def find_columns(header: Sequence[str], table: Path, names: Mapping[str, str]) -> TableLayout:
    """Where path, label and split are. Only a split that `names` does not name may be missing.

    The label may be in one column per class: label=cat+dog, or all other columns if there is none for labels. Images
    of a table with nothing but paths and splits have no label.
    """
    path, split = names.get("path", "path"), names.get("split", "split")
    label, others = names.get("label", "label"), [name for name in header if name not in (path, split)]
    labels = [label] if label in header else [name.strip() for name in label.split("+")]
    if "label" not in names and label not in header and len(others) != 1:  # one is more likely class numbers
        labels = others
    wanted, count = [path, *labels, *([split] if "split" in names or split in header else [])], Counter(header)
    if wrong := [name for name in wanted if not name or count[name] != 1]:
        raise BadInput(
            f"{table}: {count[wrong[0]]} columns are called {wrong[0][:80]!r}; the first line has "
            f"{', '.join(header)[:300]!r}; write path,label[,split] with commas, or name them with columns"
        )
    classes = tuple(labels) if len(labels) > 1 else ()
    return TableLayout(path, tuple(labels), split if split in header else None, classes)


# --- a corrected copy -------------------------------------------------------------------------------------------------


def copy_without_labels(
    table: Path, out: Path, wrong: Collection[tuple[str, str]], columns: str, new_path: Callable[[str], str] | None
) -> int:
    """Copy a .csv without the labels of some images; column `changed_from` has them. Returns how many there were.

    Images are named by absolute path and split. Relative paths in the table are passed through `new_path`.
    """
    changed = 0
    with (
        io.TextIOWrapper(open_regular(table), encoding="utf-8-sig", newline="") as source,
        open(out, "w", encoding="utf-8", newline="") as file,
    ):
        rows = csv.DictReader(source)
        header = list(rows.fieldnames or ())
        layout = find_columns(header, table, parse_columns(columns))
        if layout.classes or CHANGED_FROM in header:
            raise BadInput(f"{table}: give a table with one column of labels, and none called {CHANGED_FROM}")
        writer = csv.DictWriter(file, [*header, CHANGED_FROM], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            path = os.path.join(table.parent, row[layout.path])
            split = SPLITS[_split_number(row[layout.split] if layout.split else "", table)]
            if (os.path.abspath(path), split) in wrong:
                changed += 1
                row |= {CHANGED_FROM: row[layout.labels[0]], layout.labels[0]: ""}
            if new_path is not None and not os.path.isabs(row[layout.path]):
                row[layout.path] = new_path(path)
            writer.writerow(row)
    return changed
