"""The index of the search page: every section, statement, claim, equation, exercise, word and function, by its anchor.

It is read off the built pages and written as a plain script, which a page opened from a disk can load too.
"""

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from publishing import plain_formula

from pdebook.ledger import read_claims

STACKED = re.compile(r"\\(?:[dt]?(frac)|sqrt)(?![A-Za-z[])")  # what a line of text must put in brackets
ONE = re.compile(r"\\?[A-Za-z]+|\d+|.|\\sqrt\{[^{}]*\}")  # what needs no brackets above or below a line
PART = re.compile(r"\s*(\\[A-Za-z]+|\\?.)", re.DOTALL)
PRINTED = re.compile(r"(eq|table|[Ff]igure|Theorem|Algorithm)s? (\d[\d.]*)(?: (to|and) (\d+))?")
HEAVY = re.compile(r"<(script|style|svg)\b.*?</\1>", re.DOTALL)  # pictures and data: most of a page, and no words
LEFT_OUT = {"highlight", "headerlink", "toggle-button", "solution", "eqno", "onlyprint", "verdict-map", "ledger-filter"}
EMPTY = {"img", "br", "hr", "input", "meta", "link", "wbr", "col", "source"}
BLOCKS = {"p", "li", "td", "th", "tr", "dd", "dt", "caption", "div"}  # a word ends where these begin


@cache
def claims() -> dict:
    """The claims by the anchors of their entries, without the first word: p2-eq9."""
    return {claim.anchor.removeprefix("claim-"): claim for claim in read_claims()}


def printed(where: str) -> list[str]:
    """What a reader may search for: P2 eq 9 and eq 9 for a claim whose place is "P2 §3.2, eq 9"."""
    found = []
    for what, first, between, last in PRINTED.findall(where):
        numbers = range(int(first), int(last) + 1) if between == "to" else filter(None, (first.rstrip("."), last))
        found += [f"{what.lower()} {number}" for number in numbers]
    return [f"{where[:2]} {name}" for name in found] + found


class Places(HTMLParser):
    """The places of one page: what can be jumped to, with its title and its words."""

    def __init__(self):
        super().__init__()
        self.found, self.summary = [], ""
        self.open = []  # (tag, place that begins here or None, what of it is read: words, title, or nothing)

    def handle_starttag(self, tag, attributes):
        if tag in EMPTY:
            return
        given = dict(attributes)
        classes = set((given.get("class") or "").split())
        if tag == "dt":
            self._close_term()
        if tag in BLOCKS:
            self.handle_data(" ")
        place = self._place(tag, given.get("id"), classes)
        reads = self.open[-1][2] if self.open else "words"
        if classes & LEFT_OUT:
            reads = "nothing"
        elif reads != "nothing" and (tag in ("h1", "h2", "h3", "h4") or "admonition-title" in classes):
            reads = "title" if self._innermost() and not self._innermost()["title"] else reads
        elif tag == "summary" and reads != "nothing":
            reads, self.summary = "summary", ""
        if place and place["kind"] in ("word", "function"):
            reads = "title"
        self.open.append((tag, place, reads))

    def _place(self, tag: str, anchor: str | None, classes: set[str]) -> dict | None:
        kind = None
        if tag == "section" and anchor != "proof-content":
            kind = "section"
        elif "proof" in classes and anchor != "proof" and len(classes) == 3:
            kind = "statement"
        elif "exercise" in classes:
            kind = "exercise"
        elif tag == "dl" and (anchor or "").startswith(("claim-", "box-")):
            kind = "claim" if anchor.startswith("claim-") else "case"
        elif (anchor or "").startswith("equation-"):
            kind = "equation"
        elif tag == "dt" and anchor:
            kind = "function" if "sig" in classes else "word"
        if kind is None or not anchor:
            return None
        place = {"kind": kind, "title": "", "anchor": anchor, "words": "", "under": self._innermost()}
        if kind in ("claim", "case"):
            claim = claims()[anchor.partition("-")[2]]
            place["title"] = f"{claim.id}: {claim.title}"
            place["words"] = self.summary.replace(claim.id, "").replace(claim.title, "") + ". "
        self.found.append(place)
        return place

    def handle_endtag(self, tag):
        if tag == "dl":
            self._close_term()
        for at in range(len(self.open) - 1, -1, -1):
            if self.open[at][0] == tag:
                closed = self.open[at]
                del self.open[at:]
                if tag == "dt" and closed[1]:  # a word and what is said of it: the place lasts until the next word
                    self.open.append(("term", closed[1], "words"))
                return

    def _close_term(self):
        if any(tag == "term" for tag, _, _ in self.open):
            while self.open.pop()[0] != "term":
                pass

    def _innermost(self) -> dict | None:
        return next((place for _, place, _ in reversed(self.open) if place), None)

    def handle_data(self, text):
        reads = self.open[-1][2] if self.open else "nothing"
        if reads == "summary":
            self.summary += text
        elif reads != "nothing" and (place := self._innermost()):
            place[reads] += text
        number = self.open and self.open[-1][0] == "span" and re.fullmatch(r"\(([\dA-Z.]+)\)", text.strip())
        if number and (place := self._innermost()) and place["kind"] == "equation":
            place["title"] = place["title"] or f"Equation {number[1]}"


def in_line(tex: str) -> str:
    """Fractions and roots with brackets: \\tfrac12\\sqrt{x+1} becomes (1/2)√(x+1)."""
    while found := STACKED.search(tex):
        first, rest = _part(tex[found.end() :])
        if found[1]:
            second, rest = _part(rest)
            above, below = (part if ONE.fullmatch(part) else f"({part})" for part in (first, second))
            tex = f"{tex[: found.start()]}({above}/{below}){rest}"
        else:
            tex = f"{tex[: found.start()]}√({first}){rest}"
    return tex


def _part(tex: str) -> tuple[str, str]:
    """The first argument of a command, a sign or what braces hold, and what follows it."""
    tex, depth = tex.lstrip(), 0
    if not tex.startswith("{"):
        found = PART.match(tex)
        return (found[1], tex[found.end() :]) if found else ("", "")
    for at, sign in enumerate(tex):
        depth += (sign == "{") - (sign == "}")
        if not depth:
            return tex[1:at], tex[at + 1 :]
    return tex[1:], ""


def readable(text: str) -> str:
    """One line, its formulas as text."""
    text = re.sub(r"\\\[.*?\\\]", " … ", text, flags=re.DOTALL)
    text = re.sub(r"\\\((.*?)\\\)", lambda m: plain_formula(in_line(m[1])), text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text).strip()


def keys(place: dict) -> list[str]:
    """The names that lead straight to a place: P2-eq9, P2 eq 9 and eq 9; Theorem 10.1 and its label."""
    anchor, title = place["anchor"], place["title"]
    if place["kind"] in ("claim", "case"):
        claim = claims()[anchor.partition("-")[2]]
        return [claim.id, *printed(claim.where)]
    if place["kind"] == "function":
        return [title, title.rpartition(".")[2]]
    name = re.match(r"\w+ [\dA-Z.]*\d", title)
    if place["kind"] in ("statement", "exercise", "equation") and name:
        return [name[0], anchor.removeprefix("equation-")]
    return [title] if place["kind"] == "word" else []


def places(markup: str) -> list[list]:
    """[kind, title, anchor, words, keys] of each place of a page; the first is the page itself."""
    article = re.search(r"<article.*?</article>", markup, re.DOTALL)
    parser = Places()
    parser.feed(HEAVY.sub("", article[0]) if article else "")
    found = []
    for place in parser.found:
        place["title"] = place["anchor"] if place["kind"] == "function" else readable(place["title"])
        inside = place["under"] is not None and place["under"]["kind"] != "section"
        if place["title"] and not (place["kind"] == "section" and inside):
            words = readable(place["words"]) if place["kind"] not in ("case", "equation") else ""
            found.append([place["kind"], place["title"], place["anchor"], words, keys(place)])
    return found


def write_index(out: Path, names: list[str]) -> None:
    """_static/search_index.js: BOOK_PLACES = [[address, title of the page, places], …] in the order of the book."""
    pages = []
    for name in names:
        found = places((out / f"{name}.html").read_text(encoding="utf-8"))
        if found:
            pages.append([f"{name}.html", found[0][1], found])
    packed = json.dumps(pages, ensure_ascii=False, separators=(",", ":"))
    (out / "_static" / "search_index.js").write_text(f"const BOOK_PLACES = {packed};\n", encoding="utf-8")
