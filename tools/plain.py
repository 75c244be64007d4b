"""MyST pages as plain Markdown that every notebook viewer reads, with the numbers of the built pages.

Directives become quoted blocks headed **Theorem 4.1 (title).**, what is behind a click becomes <details>, a formula
becomes one line of $$…$$ with its number, and references become words: "Theorem 4.1", "(4.3)", "Vaswani et al. (2017)".
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import yaml
from exercises import BOOK, ROOT, instructor_edition, read_source
from pybtex.database import Person, parse_file

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|:{3,})\{(?P<kind>[\w:-]+)\}[ \t]*(?P<title>.*)$")
OPTION = re.compile(r"^:([\w-]+):[ \t]*(.*)$")
ROLE = re.compile(r"\{(?P<kind>[\w:]+)\}`(?:(?P<words>[^`<]+?)\s*<(?P<target>[^>`]+)>|(?P<only>[^`]+))`")
MATH = re.compile(r"\$\$.*?\$\$|\$[^$\n]*\n?[^$\n]*\$", re.DOTALL)
NOTE = re.compile(r"^\[\^([\w-]+)\]:[ \t]*", re.MULTILINE)


class Named(NamedTuple):
    """What a label stands for: Theorem 4.1, with its title and its page."""

    kind: str
    number: str
    title: str
    page: str


@dataclass
class Block:
    """A directive: its kind, title and options, and the lines inside it."""

    kind: str
    title: str
    options: dict[str, str]
    body: list[str]
    indent: str = ""

    @property
    def folded(self) -> bool:
        return "dropdown" in self.options.get("class", "")


def parts(text: str) -> Iterator[str | Block]:
    """The text as lines and directives, outermost only; a fence ends with as many marks as it began."""
    lines = iter(text.splitlines())
    for line in lines:
        opening = FENCE.match(line)
        if opening is None:
            yield line
            continue
        body = []
        for inner in lines:
            if inner.strip() == opening["fence"]:
                break
            body.append(inner.removeprefix(opening["indent"]))
        options = {}
        while body and (option := OPTION.match(body[0])):
            options[option[1]] = option[2].strip()
            body.pop(0)
        yield Block(opening["kind"], opening["title"].strip(), options, body, opening["indent"])


# Numbers


@cache
def pages() -> dict[str, str]:
    """Every page in the order of the table of contents, with its chapter number; "" where chapters have none."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    found, count = {contents["root"].removeprefix("book/"): ""}, 0
    for part in contents["parts"]:
        for page in part["chapters"]:
            count += bool(part.get("numbered"))
            found[page["file"].removeprefix("book/")] = str(count) if part.get("numbered") else ""
    return found


@cache
def numbers() -> dict[str, Named]:
    """What every label of the book stands for, counted as the built pages count."""
    found, counts = {}, Counter()
    for page, chapter in pages().items():
        if not (BOOK / f"{page}.md").exists():
            continue
        for kind, label, title in _numbered(page):
            counts[chapter, kind] += 1
            number = f"{chapter}.{counts[chapter, kind]}".removeprefix(".")
            found[label or f"{page} {kind} {number}"] = Named(kind, number, title, page)
    return found


def _numbered(page: str) -> Iterator[tuple[str, str, str]]:
    """(kind, label, title) of all that has a number on a page, in its order."""
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    if not text.startswith("---\njupytext:"):
        yield from _within(text)
        return
    for cell in instructor_edition(read_source(BOOK / f"{page}.md")).cells:
        if cell.cell_type == "markdown":
            yield from _within(cell.source)
        elif figure := cell.metadata.get("mystnb", {}).get("figure"):
            yield "Figure", figure.get("name", ""), ""


def _within(text: str) -> Iterator[tuple[str, str, str]]:
    for part in parts(text):
        if isinstance(part, str):
            continue
        label = part.options.get("label", "")
        if part.kind == "math" and label:
            yield "Equation", label, ""
        elif (part.kind.startswith("prf:") and part.kind != "prf:proof") or part.kind == "exercise":
            yield part.kind.removeprefix("prf:").capitalize(), label, part.title
        yield from _within("\n".join(part.body))


# Markdown


def plain(text: str, page: str) -> str:
    """The Markdown of one cell without directives, roles, labels and footnotes."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(_lines(_notes(text), page))).strip("\n")


def _notes(text: str) -> str:
    """A footnote stands below its paragraph's cell and is called by its name."""
    text = NOTE.sub(lambda match: f"*Note ({match[1].replace('-', ' ')}).* ", text)
    return re.sub(r"\[\^([\w-]+)\]", lambda match: f" (see the note *{match[1].replace('-', ' ')}*)", text)


def _lines(text: str, page: str) -> list[str]:
    found, plain_text = [], []

    def settle() -> None:
        if plain_text:
            found.extend(_words("\n".join(plain_text), page).splitlines())
            plain_text.clear()

    for part in parts(text):
        if isinstance(part, str):
            if not re.fullmatch(r"\([\w-]+\)=", part.strip()):
                plain_text.append(part)
            continue
        settle()
        found += [part.indent + line if line else line for line in _block(part, page)]
    settle()
    return found


def _block(block: Block, page: str) -> list[str]:
    body = "\n".join(block.body).strip("\n")
    known = numbers().get(block.options.get("label", ""))
    if block.kind == "math":
        tag = rf"\tag{{{known.number}}}" if known else ""
        return ["", f"$$ {' '.join(body.split())} {tag} $$".replace("  ", " "), ""]
    if block.kind == "solution":
        name = numbers()[block.title]
        return ["", f"**Solution to {name.kind} {name.number}.**", "", *_lines(body, page), ""]

    title = _words(block.title, page)
    if block.kind == "prf:proof":
        title = "Proof"
    elif block.kind != "admonition":
        kind = block.kind.removeprefix("prf:").capitalize() + (f" {known.number}" if known else "")
        title = f"{kind} ({title})" if title else kind
    inside = _lines(body, page)
    if block.folded:
        return ["", f"<details><summary>{title}</summary>", "", *inside, "", "</details>", ""]
    return ["", *_quoted([f"**{title}.**", *([""] if inside[:1] != [""] else []), *inside]), ""]


def _quoted(lines: list[str]) -> list[str]:
    """The lines as a quotation; what is behind a click stands below it, where every viewer opens it."""
    shown, deep = [], 0
    for line in lines:
        deep += line.startswith("<details>")
        shown.append(line if deep else f"> {line}".rstrip())
        deep -= line == "</details>"
    text = re.sub(r"(?:^>\n)+(?=<details>)|(?<=</details>)(?:\n>)+$", "\n", "\n".join(shown), flags=re.MULTILINE)
    return text.splitlines()


def _words(text: str, page: str) -> str:
    """References as words; no formula runs over a line: in a quotation the line's mark would become part of it."""
    text = ROLE.sub(lambda role: _reference(role, page), text)
    return MATH.sub(lambda match: " ".join(match[0].split()), text)


def _reference(role: re.Match, page: str) -> str:
    kind, words, target = role["kind"], role["words"], (role["target"] or role["only"]).strip()
    if kind.startswith("cite:"):
        return _cited(kind, target)
    if kind == "doc":
        return f"*{words or title(target, page)}*"
    name = numbers().get(target)
    if name is None or words:
        return words or target.replace("-", " ")
    if kind == "eq":
        return f"({name.number})" + _elsewhere(name, page)
    return f"{name.kind} {name.number}" + _elsewhere(name, page)


def _elsewhere(name: Named, page: str) -> str:
    """On which page a thing is whose number does not tell: numbers of chapters begin with the chapter's."""
    return "" if name.page == page or pages().get(name.page) else f" of *{title(name.page)}*"


def title(target: str, page: str = "") -> str:
    """The heading of a page, named as from this page."""
    folder = page.rpartition("/")[0]
    path = (BOOK / folder / f"{target}.md").resolve()
    heading = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1]


@cache
def _bibliography():
    return parse_file(str(BOOK / "references.bib")).entries


def _family_name(person: Person) -> str:
    """Without LaTeX: van Leer, Söderlind."""
    return " ".join(map(str, [*person.rich_prelast_names, *person.rich_last_names]))


def _cited(kind: str, keys: str) -> str:
    names = []
    for key in keys.split(","):
        entry = _bibliography()[key.strip()]
        people = [_family_name(person) for person in entry.persons["author"]]
        who = people[0] + (f" and {people[1]}" if len(people) == 2 else " et al." if len(people) > 2 else "")
        names.append(f"{who} ({entry.fields['year']})" if kind == "cite:t" else f"{who}, {entry.fields['year']}")
    return "; ".join(names) if kind == "cite:t" else f"({'; '.join(names)})"
