"""Source: a `.csv` with the columns path, label (or one column of weights per class) and, optionally, split."""

from __future__ import annotations

import csv
import io
import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from supancl.data.columns import SPLITS, Columns
from supancl.data.labels import (
    SEPARATOR,
    LabelSet,
    LabelTable,
    as_number,
    check_count,
    ends_like_weight,
    pairs_from_matrix,
    parse_label_set,
)
from supancl.data.splits import NO_LABEL, SPLIT_NAMES, DataSpec, Listing, check_label
from supancl.errors import BadInput, plural
from supancl.files import escape_formula, open_regular, unescape_formula

if TYPE_CHECKING:
    from _csv import Reader

COLUMN_SEPARATORS = (";", "\t", "|")  # of tables that are saved without commas
PREDICTED_COLUMNS = {"label", "confidence", "source"}  # of a table that `supancl predict` wrote


def list_csv(
    path: Path, skip_bad: bool = False, column_names: str = "", max_labels: int = DataSpec.max_labels
) -> Listing:
    """List the images of a table; relative paths start at its folder. `column_names`: image=file,label=species.

    If a label has a ';', every label is one or more names with ';' between them and, where it is not 1, a weight:
    'cat;dog:0.7'. With `max_labels` = 1 every label is one name. Without a column for labels, all others hold the
    weights of a class each.
    """
    label_lines = dict[str, int]()
    columns, folder, isfile = Columns.Builder(path.parent), os.path.join(path.parent, ""), os.path.isfile
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            layout = find_columns(header, path, parse_columns(column_names))
            weights = WeightRows(layout.classes, layout.is_guessed)
            check = weights.add if layout.classes else _checked_label
            for text, label, split in _parse_rows(rows, path, columns, layout, label_lines, check):
                is_plain = "/." not in text and "//" not in text and text[0] not in "./"
                if not skip_bad and not isfile(folder + text if is_plain else os.path.join(folder, text)):
                    raise BadInput(  # with skip_bad it is listed as unreadable
                        f"{path} line {rows.line_num}: no file {text!r} (looked in {path.parent}); correct the path, "
                        "remove the line, or pass skip_bad_images"
                    )
                columns.add(split, text, label)
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: not a csv file in UTF-8 ({error}); save it in that encoding") from None
    entries = columns.build()
    if not len(entries):
        raise BadInput(f"{path}: no image is listed; write a line path,label[,split] for each, below the first")
    if not entries.has_split("train"):
        raise BadInput(f"{path}: no row has split 'train'; give it to some rows, or remove the column")
    remarks = _prediction_remarks(path, header)
    if layout.classes:
        lines = list(label_lines.values())
        label_table = weights.label_table(max_labels, lambda row: f"{path} line {lines[row]}")
        return Listing(entries, path.parent, remarks, label_table=label_table, listed_in=str(path))
    if max_labels == 1:
        return Listing(entries, path.parent, remarks, listed_in=str(path))
    if not any(SEPARATOR in label for label in label_lines):
        return Listing(entries, path.parent, (*remarks, *_weight_remarks(path, entries)), listed_in=str(path))
    label_sets = {label: _label_set(label, path, line, max_labels) for label, line in label_lines.items()}
    return Listing(entries, path.parent, remarks, label_sets=label_sets, listed_in=str(path))


class TableLayout(NamedTuple):
    """Where a table has its values. `classes` is empty, or the label is in one column for each of these classes.

    `is_guessed` if nobody named these columns.
    """

    width: int
    path: int
    labels: tuple[int, ...]
    split: int | None
    classes: tuple[str, ...] = ()
    is_guessed: bool = False


def _parse_rows(
    rows: Reader,
    table: Path,
    columns: Columns.Builder,
    layout: TableLayout,
    label_lines: dict[str, int],
    check: Callable[[str, Path, int], str],
) -> Iterator[tuple[str, int, int]]:
    """(path, number of the label, number of the split) of every row; each label and split is checked once.

    `label_lines` gets each label with its first line.
    """
    width, path_column, label_columns, split_column = layout[:4]
    labels, splits, read_label = dict[str, int](), {"": 0}, _label_reader(label_columns)
    for row in rows:
        if not row:
            continue
        if len(row) != width:
            row = _fit_row(row, width, table, rows.line_num)
        path, label, split = row[path_column], read_label(row), "" if split_column is None else row[split_column]
        if not path or "\n" in path:
            raise BadInput(_path_fault(path, table, rows.line_num))
        if label not in labels:
            checked = check(label, table, rows.line_num)
            labels[label] = columns.number_label(checked)
            label_lines.setdefault(checked, rows.line_num)
        if split not in splits:
            splits[split] = SPLITS.index(_checked_split(split, table, rows.line_num))
        yield path, labels[label], splits[split]


def _label_reader(columns: Sequence[int]) -> Callable[[list[str]], str]:
    """From a row to its label; that of several columns is a text with a line for each, that of none is empty."""
    if not columns:
        return lambda row: ""
    read: Callable[[list[str]], Any] = itemgetter(*columns)
    return read if len(columns) == 1 else lambda row: "\n".join(read(row))


def _path_fault(path: str, table: Path, line: int) -> str:
    if not path:
        return f"{table} line {line}: no path; write path,label[,split]"
    return (  # an open quote has swallowed the next lines
        f"{table}, up to line {line}: a value spans several lines; close its double quote, and double the quotes "
        "inside it"
    )


def is_read_as_written(name: str) -> bool:
    """Whether a table with this class name is read with the same one.

    >>> [is_read_as_written(name) for name in ("cat", "=A1", "a;b", "cat ", "-1")]
    [True, True, False, False, False]
    """
    read = unescape_formula(escape_formula(name).strip())
    return read == name and name not in NO_LABEL and SEPARATOR not in name


def _checked_label(text: str, table: Path, line: int) -> str:
    if "\n" in text:
        raise BadInput(_path_fault(text, table, line))
    label = unescape_formula(text.strip())
    check_label(label, f"{table} line {line}")
    return "" if label in NO_LABEL else label


class WeightRows:
    """The weights in the rows of a table with one column per class, each combination once.

    Columns that nobody named are classes only if no value is above 1: a width of 640 is no weight.
    """

    def __init__(self, classes: Sequence[str], is_guessed: bool = False) -> None:
        self.classes, self.is_guessed, self.values = classes, is_guessed, array("d")

    def add(self, text: str, table: Path, line: int) -> str:
        """Add the cells that stand in the lines of a text, and return it."""
        cells = text.split("\n")
        if len(cells) != len(self.classes):
            raise BadInput(_path_fault(text, table, line))
        try:
            weights = list(map(float, cells)) if any(map(str.strip, cells)) else [-1.0] * len(cells)
        except ValueError:
            raise self._no_weight(cells, lambda cell: as_number(cell) is None, table, line) from None
        if self.is_guessed and any(1 < weight < math.inf for weight in weights):
            raise self._no_weight(cells, lambda cell: 1 < float(cell) < math.inf, table, line)
        self.values.extend(weights)
        return text

    def _no_weight(self, cells: list[str], is_wrong: Callable[[str], bool], table: Path, line: int) -> BadInput:
        """The error about the first cell that is wrong."""
        column = next(column for column, cell in enumerate(cells) if is_wrong(cell))
        return BadInput(
            f"{table} line {line}: column {self.classes[column]!r} holds {cells[column].strip()[:80]!r}, which is "
            "no weight from 0 to 1; without a column 'label', all columns but path and split are classes: write 0, 1 "
            "or a weight, or name the columns with columns image=NAME,label=NAME (label=cat+dog: one per class)"
        )

    def label_table(self, max_labels: int, name_row: Callable[[int], str]) -> LabelTable:
        """The classes in sorted order, and the pairs of the rows in the order in which they were added."""
        order = sorted(range(len(self.classes)), key=self.classes.__getitem__)
        classes = tuple(self.classes[column] for column in order)
        weights = np.frombuffer(self.values).reshape(-1, len(classes))[:, order]
        return LabelTable(classes, pairs_from_matrix(weights, max_labels, name_row, classes))


def _label_set(text: str, table: Path, line: int, max_labels: int) -> LabelSet:
    """The names and weights in a label; none in an empty one."""
    location = f"{table} line {line}"
    labels = parse_label_set(text, location)
    for name in labels:
        check_label(name, location)
    if text and not labels:
        raise BadInput(f"{location}: the label {text!r} names no class; write names with ';' between them, or nothing")
    check_count(len(labels), max_labels, location)
    return {name: weight for name, weight in labels.items() if name not in NO_LABEL}


def _checked_split(text: str, table: Path, line: int) -> str:
    split = text.strip().lower()
    if split not in SPLIT_NAMES:
        raise BadInput(f"{table} line {line}: split {split!r} is unknown; use train, val or test")
    return SPLIT_NAMES[split]


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


def find_columns(header: list[str], table: Path, names: Mapping[str, str]) -> TableLayout:
    """Where path, label and split are. Only a split that `names` does not name may be missing.

    The label may be in one column per class: label=cat+dog, or all other columns if there is none for labels. Images
    of a table with nothing but paths and splits have no label.
    """
    path, split = names.get("path", "path"), names.get("split", "split")
    labels = _label_columns(header, path, split, names)
    required = [path, *labels, *([split] if "split" in names else [])]
    missing = [name for name in required if name not in header]
    if missing:
        columns = ", ".join(header) or "nothing"
        separator = next((mark for mark in COLUMN_SEPARATORS if len(header) == 1 and mark in columns), None)
        if separator is not None:
            raise BadInput(f"{table}: the columns are separated by {separator!r}; save it with commas between them")
        raise BadInput(
            f"{table}: no column {min(missing)!r}; the first line has {columns}; write path,label[,split], name the "
            "columns with columns image=NAME,label=NAME, or write one column of weights for each of several classes"
        )
    count = Counter(header)
    repeated = next((name for name in (path, *labels, split) if count[name] > 1), None)
    if repeated is not None:
        raise BadInput(f"{table}: {count[repeated]} columns are called {repeated!r}; keep one of them")
    split_column = header.index(split) if split in header else None
    classes = _class_names(labels, table) if len(labels) > 1 else ()
    label_columns, is_guessed = tuple(map(header.index, labels)), "label" not in names
    return TableLayout(len(header), header.index(path), label_columns, split_column, classes, is_guessed)


def _class_names(columns: Sequence[str], table: Path) -> tuple[str, ...]:
    """The classes that these columns hold the weights of."""
    names = tuple(name.strip() for name in columns)
    count = Counter(names)
    for name in names:
        check_label(name, str(table))
        if not name or "\n" in name or count[name] > 1:
            raise BadInput(
                f"{table}: a column called {name[:80]!r} cannot be a class; give every class another name, or name the "
                "columns of the classes with columns label=cat+dog"
            )
    return names


def _label_columns(header: list[str], path: str, split: str, names: Mapping[str, str]) -> list[str]:
    """The column of labels, or those of the classes, or none; a single other column is more likely class numbers."""
    label = names.get("label", "label")
    if label in header or path not in header:
        return [label]
    if "label" in names:
        return [name.strip() for name in label.split("+")]
    others = [name for name in header if name not in (path, split)]
    return [label] if len(others) == 1 else others


def _fit_row(row: list[str], width: int, table: Path, line: int) -> list[str]:
    """The row with as many values as the header; more are refused: a label 'cat, grey' would become 'cat'."""
    if any(row[width:]):
        raise BadInput(
            f"{table} line {line}: more values than the {width} columns of the first line; put values with a comma in "
            "double quotes"
        )
    return row[:width] + [""] * (width - len(row))


def _prediction_remarks(table: Path, header: list[str]) -> tuple[str, ...]:
    """A remark on labels that `supancl predict` filled in: held-out images may be among them."""
    if not PREDICTED_COLUMNS.issubset(header):
        return ()
    with io.TextIOWrapper(open_regular(table), encoding="utf-8-sig", newline="") as file:
        predicted = sum(row["source"] == "predicted" for row in csv.DictReader(file))
    if not predicted:
        return ()
    return (
        f"{table}: {plural(predicted, 'label was', 'labels were')} predicted (column source), and held-out images may "
        "be among them, so accuracies are not about true labels; name true ones with evaluate data",
    )


def _weight_remarks(table: Path, entries: Columns) -> tuple[str, ...]:
    """A remark on labels that would be read as weights if some label had a ';'."""
    numbers = [number for number, name in enumerate(entries.label_names) if ends_like_weight(name)]
    count = int(np.isin(entries.labels, numbers).sum())
    if not count:
        return ()
    example = entries.label_names[numbers[0]][:80]
    return (
        f"{table}: {plural(count, 'label looks', 'labels look')} like NAME:WEIGHT, such as {example!r}, and "
        f"{'is' if count == 1 else 'are'} read as names, because no label of the table has a ';'. If they are weights, "
        "end labels in a ';' (cat:0.7;); if they are names, data.max_labels=1 says so",
    )
