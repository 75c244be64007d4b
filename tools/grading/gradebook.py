"""A gradebook of Canvas or Moodle with the column of the assignment filled in, and who stands there and where not."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from grading.kit import Kit
from grading.tables import style

END = re.compile(r" \(.*\)$")  # of a column's name: a number in Canvas, a kind in Moodle


class Filled(NamedTuple):
    """The text of the gradebook with points in it; submissions that it lacks, and its students without a submission."""

    text: str
    missing: list[str]
    absent: list[str]


def fill(text: str, kit: Kit, totals: Mapping[str, float], numbers: Mapping[str, str]) -> Filled:
    """A Canvas or Moodle export with the column of this assignment filled in.

    Students are found by their number (Canvas: ID; Moodle: Identifier), else by their name, whatever its order. Rows,
    other columns, and rows of students who handed in nothing stay as they are.
    """
    own = style(text)
    written = _rows(text, own.separator)
    if not text.strip():
        raise ValueError("GRADEBOOK is empty; export it with its rows of students")
    rows = [[_value(field) for field in row[:-1]] for row in written]
    head = _Head.of(rows[0], kit)

    by_number = {_digits(head.number(row)): n for n, row in enumerate(rows) if n and head.number(row)}
    by_name: dict[str, list[int]] = {}
    for n, row in enumerate(rows[1:], start=1):
        for order in {order for name in head.names(row) for order in _orders(name)}:
            by_name.setdefault(order, []).append(n)

    left, taken = dict(totals), set()
    for student in totals:
        named = by_name.get("".join(_words(student)), [])
        n = by_number.get(numbers.get(student) or "nobody", named[0] if len(named) == 1 else None)
        taken |= set(named) if n is None else {n}  # of namesakes nobody is said to be absent
        if n is not None:
            row, points = written[n], own.number(left.pop(student))
            row[-1:-1] = [""] * (head.column + 2 - len(row))
            row[head.column] = f'"{points}"' if row[head.column].startswith('"') else points

    absent = [head.student(row) for n, row in enumerate(rows) if n and n not in taken and head.student(row)]
    return Filled("".join(own.separator.join(row[:-1]) + row[-1] for row in written), sorted(left), absent)


class _Head(NamedTuple):
    """Where in a row what stands: the points, the names in one column or several, and the numbers."""

    column: int
    people: list[int]
    parts: list[int]
    ids: list[int]

    @classmethod
    def of(cls, row: list[str], kit: Kit) -> "_Head":
        head = [name.strip() for name in row]
        columns = [n for n, one in enumerate(head) if one == "Grade" or END.sub("", one).split(": ")[-1] == kit.name]
        columns = [n for n in columns if head[n].endswith(" (Real)")] or columns  # and not the percentage beside it
        people, parts, ids = (
            [n for n, name in enumerate(head) if name in wanted]
            for wanted in (
                ("Student", "Full name", "Name"),
                ("First name", "Last name", "Surname"),
                ("ID", "Identifier"),
            )
        )
        if len(columns) != 1 or not (people or ids or parts):
            raise ValueError(
                f"GRADEBOOK needs a column {kit.name} (Canvas), or one column Grade or Assignment: {kit.name} "
                f"(Moodle), and the students' names; its columns are {', '.join(head)}"
            )
        return cls(columns[0], people, parts, ids)

    def names(self, row: list[str]) -> list[str]:
        """What a row calls its student."""
        whole = [row[n] for n in self.people if n < len(row)]
        together = " ".join(row[n] for n in self.parts if n < len(row))
        return [name.strip() for name in (*whole, together) if name.strip()]

    def number(self, row: list[str]) -> str:
        return row[self.ids[0]] if self.ids and self.ids[0] < len(row) else ""

    def student(self, row: list[str]) -> str:
        """By name, or else by number, the student of a row; nothing where it is one that Canvas puts among them."""
        shown = [*self.names(row), self.number(row).strip()][0]
        return "" if shown in ("Points Possible", "Student, Test") else shown


def _rows(text: str, separator: str) -> list[list[str]]:
    """The rows of a table: the fields as they are written, quotes and all, and behind them the end of the line."""
    found: list[list[str]] = [[]]
    for field, end in re.findall(rf'("(?:[^"]|"")*"|[^{separator}\r\n]*)({separator}|\r\n|[\r\n]|\Z)', text):
        found[-1].append(field)
        if end != separator:
            found[-1].append(end)
            found.append([])
    return found[:-1]


def _value(field: str) -> str:
    return field[1:-1].replace('""', '"') if field.startswith('"') else field


def _digits(text: str) -> str:
    return "".join(letter for letter in text if letter.isdigit())


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.casefold())


def _orders(name: str) -> set[str]:
    """A name as one word, from each of its words on: "Lovelace, Ada" is lovelaceada and adalovelace."""
    words = _words(name)
    return {"".join(words[n:] + words[:n]) for n in range(len(words))}
