"""Source: a `.csv` or `.parquet` with the columns path, label (or one column of weights per class) and, optionally,
split; and a copy of a `.csv` with some labels replaced."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from supancl.data.labels import (
    SEPARATOR,
    LabelSet,
    check_count,
    labels_of_splits,
    pairs_from_matrix,
    parse_label_set,
)
from supancl.data.listing import SPLITS, Listing, TablePaths, make_listing
from supancl.data.splits import NO_LABEL, SPLIT_NAMES, DataSpec
from supancl.errors import BadInput
from supancl.files import check_fits_memory, escape_formula, open_regular, unescape_formula

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".csv", ".parquet")
COLUMN_SEPARATORS = (";", "\t", "|")  # of tables that are saved without commas
BLOCK_BYTES = 2**24  # a line of more is refused
PREDICTED_COLUMNS = {"label", "confidence", "source"}  # of a table that `supancl predict` wrote
CHANGED_FROM = "changed_from"


def list_table(path: Path, column_names: str = "", max_labels: int = DataSpec.max_labels) -> Listing:
    """List the images of a table; relative paths start at its folder. `column_names`: image=file,label=species.

    If a label has a ';', every label is one or more names with ';' between them and, where it is not 1, a weight:
    'cat;dog:0.7'. With `max_labels` = 1 every label is one name. Without a column for labels, all others hold the
    weights of a class each.
    """
    import pyarrow as pa

    is_csv = path.suffix.lower() != ".parquet"
    try:
        with open_regular(path) as file:
            table, layout = (_read_csv if is_csv else _read_parquet)(file, path, parse_columns(column_names))
    except (pa.ArrowException, csv.Error, UnicodeDecodeError) as error:
        why = re.sub(r"Row #(\d+)", lambda row: f"line {int(row[1]) + 1}", str(error).partition("\n")[0])[:300]
        kind = "csv file in UTF-8" if is_csv else "parquet file"
        raise BadInput(f"{path}: not a {kind} ({why}); put values with a comma in double quotes") from None
    if not table.num_rows:
        raise BadInput(f"{path}: no image is listed; write a line path,label[,split] for each, below the first")
    for name in (layout.path, *layout.labels):
        _check_lines(table[name], path)
    items = TablePaths(path.parent, *_values(table[layout.path]))
    if (at := items.find_empty()) is not None:
        raise BadInput(f"{path} line {at + 2}: no path; write path,label[,split]")
    splits = np.zeros(table.num_rows, np.uint8)
    if layout.split is not None:
        names, rows = _different(table[layout.split])
        first = _first_lines(rows, len(names))
        numbers = [_split_number(name, path, line) for name, line in zip(names.to_pylist(), first, strict=True)]
        splits = np.array(numbers, np.uint8)[rows]
    if not (splits == SPLITS.index("train")).any():
        raise BadInput(f"{path}: no row has split 'train'; give it to some rows, or remove the column")
    remarks = _prediction_remarks(path, table)
    if layout.classes:
        weights = _weights(table, layout, path)
        order = sorted(range(len(layout.classes)), key=layout.classes.__getitem__)
        classes = tuple(layout.classes[column] for column in order)
        pairs = pairs_from_matrix(weights[:, order], max_labels, lambda row: f"{path} line {row + 2}", classes)
        labels = labels_of_splits({"all": pairs})["all"]
        return Listing(items, splits, labels, classes, str(path), remarks, keeps_classes=True)
    texts, codes, lines = [""], np.zeros(table.num_rows, np.int32), [2]
    if layout.labels:
        column, codes = _different(table[layout.labels[0]])
        texts, lines = [_label(text) for text in column.to_pylist()], _first_lines(codes, len(column))
    if max_labels == 1 or not any(SEPARATOR in text for text in texts):
        return make_listing(items, splits, codes, texts, path, remarks=remarks)
    sets = [_label_set(text, f"{path} line {line}", max_labels) for text, line in zip(texts, lines, strict=True)]
    return make_listing(items, splits, codes, sets, path, remarks=remarks)


class TableLayout(NamedTuple):
    """The columns of a table: their names. `classes` is empty, or the label is in one column for each of these classes.

    `is_guessed` if nobody named these columns.
    """

    path: str
    labels: tuple[str, ...]
    split: str | None
    classes: tuple[str, ...] = ()
    is_guessed: bool = False

    def wanted(self, header: Sequence[str]) -> list[str]:
        """The columns to read."""
        predicted = PREDICTED_COLUMNS & set(header) if PREDICTED_COLUMNS.issubset(header) else set()
        return list(dict.fromkeys([self.path, *self.labels, *([self.split] if self.split else []), *predicted]))


def _read_csv(file: io.BufferedReader, path: Path, names: Mapping[str, str]) -> tuple[pa.Table, TableLayout]:
    """The columns that are needed, as texts. A line longer than a block is refused, whatever is behind it."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    header = next(csv.reader([file.readline(BLOCK_BYTES).decode("utf-8-sig")]), [])
    header = [name.strip() for name in header]
    layout = find_columns(header, path, names)
    texts = dict.fromkeys(header, pa.large_string())
    options = arrow.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=header)
    convert = arrow.ConvertOptions(column_types=texts, include_columns=layout.wanted(header), strings_can_be_null=False)
    if not file.peek(1):
        return pa.table({name: pa.array([], pa.large_string()) for name in layout.wanted(header)}), layout
    return arrow.read_csv(file, options, convert_options=convert), layout


def _read_parquet(file: io.BufferedReader, path: Path, names: Mapping[str, str]) -> tuple[pa.Table, TableLayout]:
    """The same of a parquet file. Repeated values are not written out: a small file could fill the memory."""
    import pyarrow as pa
    from pyarrow import compute, parquet

    metadata = parquet.read_metadata(file)
    layout = find_columns(list(metadata.schema.names), path, names)
    wanted = layout.wanted(metadata.schema.names)
    nbytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    check_fits_memory(nbytes + 16 * metadata.num_rows * len(wanted), str(path), "divide it")
    file.seek(0)
    table = parquet.read_table(file, columns=wanted, read_dictionary=wanted, use_threads=False)
    columns = {}
    for name in wanted:
        encoded = table[name].combine_chunks()
        if not pa.types.is_dictionary(encoded.type):
            encoded = compute.dictionary_encode(encoded)
        texts = compute.fill_null(compute.cast(encoded.dictionary, pa.large_string()), "")
        indices = compute.fill_null(encoded.indices, len(texts))  # no value is an empty one
        columns[name] = pa.DictionaryArray.from_arrays(indices, pa.concat_arrays([texts, pa.array([""], texts.type)]))
    return pa.table(columns), layout


def _values(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray | None]:
    """The values of a column; those of parquet are kept once each, with their number in every row."""
    import pyarrow as pa

    values = column.combine_chunks()
    if not pa.types.is_dictionary(values.type):
        return values, None
    return values.dictionary, values.indices.to_numpy(zero_copy_only=False)


def _different(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """The different values of a column, and which of them is in each row."""
    values, rows = _values(column)
    if rows is None:
        encoded = values.dictionary_encode()
        values, rows = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False)
    return values, rows.astype(np.int32)  # a copy, which torch may write to


def _first_lines(rows: np.ndarray, values: int) -> list[int]:
    """The first line of the table that has each value."""
    first = np.full(values, len(rows))
    np.minimum.at(first, rows, np.arange(len(rows)))
    return (first + 2).tolist()


def _check_lines(column: pa.ChunkedArray, path: Path) -> None:
    from pyarrow import compute

    values, _ = _values(column)
    if compute.any(compute.match_substring(values, "\n")).as_py():
        raise BadInput(f"{path}: a value spans several lines; close its double quote, and double the quotes inside it")


def _label(text: str) -> str:
    label = unescape_formula(text.strip())
    return "" if label in NO_LABEL else label


def _weights(table: pa.Table, layout: TableLayout, path: Path) -> np.ndarray:
    """(N, C): the weights in the columns of the classes; -1 in the row of an unlabelled image.

    Columns that nobody named are classes only if no value is above 1: a width of 640 is no weight.
    """
    import pyarrow as pa
    from pyarrow import compute

    columns = []
    for name in layout.labels:
        values, rows = _values(table[name])
        texts = compute.utf8_trim_whitespace(values)
        try:
            weights = compute.cast(compute.if_else(compute.equal(texts, ""), None, texts), pa.float64())
        except pa.ArrowInvalid as error:
            raise BadInput(f"{path}: column {name!r} holds no weight ({error}); {_WEIGHTS}") from None
        found = weights.to_numpy(zero_copy_only=False)
        found = found if rows is None else found[rows]
        if layout.is_guessed and ((found > 1) & np.isfinite(found)).any():
            at = int(np.argmax(found > 1))
            raise BadInput(f"{path} line {at + 2}: column {name!r} holds {found[at]:g}; {_WEIGHTS}")
        columns.append(found)
    matrix = np.stack(columns, axis=1)
    matrix[np.isnan(matrix).all(1)] = -1
    return matrix


_WEIGHTS = (
    "without a column 'label', all columns but path and split are classes: write 0, 1 or a weight up to 1, or name the "
    "columns with columns image=NAME,label=NAME (label=cat+dog: one per class)"
)


def _label_set(text: str, location: str, max_labels: int) -> LabelSet:
    """The names and weights in a label; none in an empty one."""
    labels = parse_label_set(text, location)
    if text and not labels:
        raise BadInput(f"{location}: the label {text!r} names no class; write names with ';' between them, or nothing")
    check_count(len(labels), max_labels, location)
    return {name: weight for name, weight in labels.items() if name not in NO_LABEL}


def _split_number(text: str, path: Path, line: int) -> int:
    split = text.strip().lower() or "train"
    if split not in SPLIT_NAMES:
        raise BadInput(f"{path} line {line}: split {split!r} is unknown; use train, val or test")
    return SPLITS.index(SPLIT_NAMES[split])


def _prediction_remarks(path: Path, table: pa.Table) -> tuple[str, ...]:
    """A remark on labels that `supancl predict` filled in: held-out images may be among them."""
    if "source" not in table.column_names or "confidence" not in table.column_names:
        return ()
    values, rows = _different(table["source"])
    predicted = int(np.isin(rows, np.flatnonzero(values.to_numpy(zero_copy_only=False) == "predicted")).sum())
    remark = f"{path}: labels that were predicted (column source): {predicted}; accuracies are not about true ones"
    return (remark,) if predicted else ()


# --- columns ----------------------------------------------------------------------------------------------------------


def parse_columns(text: str) -> dict[str, str]:
    """The name in the table of each column that `text` names; `image` and `path` mean the same.

    label=cat+dog names one column per class.

    >>> parse_columns("image=file,label=species")
    {'path': 'file', 'label': 'species'}
    """
    names: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        column, equals, name = (word.strip() for word in pair.partition("="))
        column = "path" if column == "image" else column
        if not equals or not name or column not in ("path", "label", "split") or column in names:
            fault = f"{pair.strip()!r} is not one of image=NAME, label=NAME and split=NAME, each once"
            raise BadInput(f"data.columns = {text}: {fault}; write it as in image=file,label=species,split=part")
        names[column] = name
    return names


def find_columns(header: Sequence[str], table: Path, names: Mapping[str, str]) -> TableLayout:
    """Where path, label and split are. Only a split that `names` does not name may be missing.

    The label may be in one column per class: label=cat+dog, or all other columns if there is none for labels. Images
    of a table with nothing but paths and splits have no label.
    """
    path, split = names.get("path", "path"), names.get("split", "split")
    labels = _label_columns(header, path, split, names)
    missing = [name for name in (path, *labels, *([split] if "split" in names else [])) if name not in header]
    if missing:
        columns = ", ".join(header) or "nothing"
        separator = next((mark for mark in COLUMN_SEPARATORS if len(header) == 1 and mark in columns), None)
        if separator is not None:
            raise BadInput(f"{table}: the columns are separated by {separator!r}; save it with commas between them")
        raise BadInput(
            f"{table}: no column {min(missing)!r}; the first line has {columns[:300]}; write path,label[,split], name "
            "the columns with columns image=NAME,label=NAME, or write one column of weights for each of several classes"
        )
    count = Counter(header)
    for name in (path, *labels, split):
        if count[name] > 1 or (len(labels) > 1 and not name):
            raise BadInput(f"{table}: columns called {name[:80]!r}: {count[name]}; give each another name")
    classes = tuple(labels) if len(labels) > 1 else ()
    return TableLayout(path, tuple(labels), split if split in header else None, classes, "label" not in names)


def _label_columns(header: Sequence[str], path: str, split: str, names: Mapping[str, str]) -> list[str]:
    """The column of labels, or those of the classes, or none; a single other column is more likely class numbers."""
    label = names.get("label", "label")
    if label in header or path not in header:
        return [label]
    if "label" in names:
        return [name.strip() for name in label.split("+")]
    others = [name for name in header if name not in (path, split)]
    return [label] if len(others) == 1 else others


# --- a corrected copy -------------------------------------------------------------------------------------------------


class Correction(NamedTuple):
    """An image of a table and its label: a new one, or None to keep the given one."""

    path: str
    split: str  # train, val or test
    label: str | None


def write_corrected(
    table: Path,
    out: Path,
    corrections: Iterable[Correction],
    column_names: str = "",
    new_path: Callable[[str], str] | None = None,
) -> int:
    """Copy a .csv with the new labels; column `changed_from` has the old label where it changed.

    `corrections` are in the order of the table, one per line that was read, so that a file that is listed twice keeps
    its two labels. Relative paths are passed through `new_path`. Returns how many labels changed.
    """
    new_labels: dict[tuple[str, int], list[str | None]] = defaultdict(list)
    for path, split, label in corrections:
        new_labels[os.path.abspath(path), SPLITS.index(split)].append(label)
    changed = 0
    with (
        io.TextIOWrapper(open_regular(table), encoding="utf-8-sig", newline="") as source,
        open(out, "w", encoding="utf-8", newline="") as file,
    ):
        rows, writer = csv.reader(source), csv.writer(file, lineterminator="\n")
        header: list[str] = next(rows, [])
        layout = find_columns(header, table, parse_columns(column_names))
        if layout.classes or CHANGED_FROM in header:
            raise BadInput(
                f"{table}: give a table with one column of labels to correct, and none called {CHANGED_FROM}"
            )
        path_at, label_at = header.index(layout.path), header.index(layout.labels[0])
        writer.writerow([*header, CHANGED_FROM])
        for row in filter(None, rows):
            number = _split_number(row[header.index(layout.split)] if layout.split else "", table, rows.line_num)
            waiting = new_labels.get((os.path.abspath(os.path.join(table.parent, row[path_at])), number))
            label = waiting.pop(0) if waiting else None
            old = ""
            if label is not None:
                old, row[label_at] = row[label_at], escape_formula(label)
                changed += 1
            if new_path is not None and not os.path.isabs(row[path_at]):
                row[path_at] = new_path(os.path.join(table.parent, row[path_at]))
            writer.writerow([*row, old])
    return changed
