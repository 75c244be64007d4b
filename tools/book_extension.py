"""What the book needs from Sphinx beyond _config.yml: notebook editions, a local MathJax, one repository address."""

import hashlib
import json
import os
import re
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import nbformat
from build_book import SOLUTIONS
from docutils import nodes
from editions import edition
from exercises import code_folded, tagged
from reference import entries, footer
from sphinx.errors import ConfigError

from pdebook.kit import play
from pdebook.ledger import read_claims
from pdebook.ledger.sources import experiments

BEHIND, LEFT_OUT = SOLUTIONS
REFERENCE = "book/api"  # made of docstrings and of what the other pages use, so made anew each time
FOLDED = {  # cells behind a click, by their tag, and the words of the click
    "solution": "Show the solution",
    "check": "Show the check of your answer",
    "asserts": "What the tests assert",
}
PRINTED = re.compile(r"(eq|table|[Ff]igure|Theorem|Algorithm)s? (\d[\d.]*)(?: (to|and) (\d+))?")
# sphinx-togglebutton calls every button "Toggle hidden content"; a screen reader should say the title that it opens
NAME_FOLDS = (
    'addEventListener("load", () => document.querySelectorAll(".admonition-title > button.toggle-button")'
    '.forEach((button) => button.setAttribute("aria-label", button.parentNode.textContent.trim())));'
)
# the theme's spy of the scroll reads every link of the page, and stops at one that holds a state of the playground
SPY_ON_CONTENTS = (
    'addEventListener("DOMContentLoaded", () => { const { dataset } = document.body;'
    ' if (document.querySelector(".page-toc")) dataset.bsTarget = ".page-toc"; else delete dataset.bsSpy; });'
)
# what MathJax loads from its folder for chtml output; the rest of the package is 20 MB of other renderers
MATHJAX_PARTS = ("tex-chtml.js", "input/tex/extensions", "output/chtml/fonts/woff-v2", "ui/safe.js")


def configure(app, config) -> None:
    # book/NAME.ipynb is rendered; its source book/NAME.md must not be found as a second page of the same name
    stored = Path(app.srcdir, "book").rglob("*.ipynb")
    config.exclude_patterns += [path.relative_to(app.srcdir).with_suffix(".md").as_posix() for path in stored]
    config.mathjax_path = "mathjax/tex-chtml.js"
    config.book_solutions = os.environ.get("BOOK_SOLUTIONS") or config.book_solutions
    if config.book_solutions not in SOLUTIONS:
        raise ConfigError(f"book_solutions must be one of {SOLUTIONS}; not {config.book_solutions!r}")
    options = config.html_theme_options
    if address := os.environ.get("BOOK_REPOSITORY") or options.get("repository_url"):
        options.update(repository_url=address, use_repository_button=True, use_issues_button=True)


def prepare_notebook(app, docname: str, source: list[str]) -> None:
    """Solutions behind a click or left out, links between pages in place of notebooks, the text of the reference."""
    path = Path(app.env.doc2path(docname))
    if docname == REFERENCE:
        source[0] = entries(source[0])
    if path.suffix != ".ipynb":
        return
    notebook = nbformat.reads(source[0], 4)
    for cell in [cell for cell in notebook.cells if "case_file(" in cell.source]:
        if entries_of := index_cell(cell.source):
            notebook.cells.insert(notebook.cells.index(cell), entries_of)
    if text := footer(path):
        notebook.cells.append(nbformat.v4.new_markdown_cell(text))
    if app.config.book_solutions == LEFT_OUT:
        notebook.cells = [cell for cell in notebook.cells if not tagged(cell, "solution")]
    up = "../" * (docname.count("/") - 1)  # from the page to the chapters
    for cell in (cell for cell in notebook.cells if cell.cell_type == "markdown"):
        cell.source = cell.source.replace('<a href="playground.ipynb', f'<a href="{up}playground.html')
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        if what := next((tag for tag in FOLDED if tagged(cell, tag)), None):
            cell.metadata.tags.append("hide-cell")
            prompts = {"code_prompt_show": FOLDED[what], "code_prompt_hide": "Hide it"}
            cell.metadata["mystnb"] = cell.metadata.get("mystnb", {}) | prompts
        elif code_folded(cell):
            cell.metadata.setdefault("tags", []).append("hide-input")
        for output in cell.get("outputs", []):
            if markup := output.get("data", {}).get("text/html"):
                linked = link_pages(markup, app.env.found_docs, boxes(Path(app.srcdir, "book")), up)
                linked = play.without_script(linked, f"../{up}_static/{play.FILE}")
                output["data"]["text/html"] = link_sources(
                    linked, app.config.html_theme_options, lines(Path(app.srcdir))
                )
    source[0] = json.dumps(notebook)


@cache
def printed(claim: str) -> tuple[str, ...]:
    """What a reader may search for: P2 eq 9 for the claim whose place is "P2 §3.2, eq 9"; none for another word."""
    where = next((one.where for one in read_claims() if one.id == claim), "")
    found = []
    for what, first, between, last in PRINTED.findall(where):
        numbers = range(int(first), int(last) + 1) if between == "to" else filter(None, (first, last))
        found += [f"{where[:2]} {what.lower()} {number}" for number in numbers]
    return tuple(found)


def index_cell(source: str):
    """Index entries for the claims of a case file, so that the search finds what they print."""
    names = dict.fromkeys(f"! {entry}" for claim in re.findall(r'"([\w./-]+)"', source) for entry in printed(claim))
    return nbformat.v4.new_markdown_cell(f"```{{index}} {', '.join(names)}\n```") if names else None


def fold_proofs(app, doctree) -> None:
    """A proof of the class `dropdown` is behind a click; sphinx-togglebutton asks for a title, which proofs lack."""
    folded = [node for node in doctree.findall(nodes.admonition) if {"proof", "dropdown"} <= set(node["classes"])]
    for proof in folded:
        proof["classes"].remove("dropdown")
        whole = proof.parent
        place = whole.parent.index(whole)
        opening, closing = '<details class="proof-fold"><summary>Proof</summary>', "</details>"
        whole.parent.insert(place + 1, nodes.raw("", closing, format="html"))
        whole.parent.insert(place, nodes.raw("", opening, format="html"))


def boxes(folder: Path) -> dict[str, set[str]]:
    """The anchors of the verdict boxes that each stored notebook shows."""
    if folder not in _BOXES:
        texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.ipynb")}
        _BOXES[folder] = {name: set(re.findall(r'id=\\"(box-[\w-]+)\\"', text)) for name, text in texts.items()}
    return _BOXES[folder]


_BOXES: dict[Path, dict[str, set[str]]] = {}  # read once a build


def link_pages(markup: str, pages: set[str], boxed: dict[str, set[str]], up: str = "") -> str:
    """NAME.ipynb becomes NAME.html, and the name of a chapter that exists a link: to its verdict box, if it has one."""

    def chapter(match: re.Match) -> str:
        box, name = match[1], match[2]
        words = name.replace("_", " ")
        place = f"#{box}" if box in boxed.get(name, ()) else ""
        return f'<a href="{up}{name}.html{place}">{words}</a>' if f"book/{name}" in pages else f"{words} (to come)"

    markup = re.sub(r'href="(\w+)\.ipynb', rf'href="{up}\1.html', markup)
    return re.sub(r'<span class="chapter"(?: data-box="([\w-]+)")?>(\w+)</span>', chapter, markup)


@cache
def lines(root: Path) -> dict[str, int]:
    """On which line each experiment and each test begins, by its place: FILE::NAME."""
    found = {source.place: source.line for source in experiments().values()}
    for path in root.glob("tests/**/test_*.py"):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if match := re.match(r"def (test_\w+)\(", text):
                found[f"{path.relative_to(root).as_posix()}::{match[1]}"] = number
    return found


def link_sources(markup: str, options: dict, lines: dict[str, int]) -> str:
    """A place in the code becomes a link to its line in the repository, where the address of that is known."""
    if not (address := options.get("repository_url")):
        return markup
    branch = options.get("repository_branch") or "main"

    def source(match: re.Match) -> str:
        line = f"#L{lines[match[1]]}" if match[1] in lines else ""
        return f'<a href="{address}/blob/{branch}/{match[2]}{line}">{match[0]}</a>'

    return re.sub(r'<code class="source">(([\w./-]+\.py)[^<]*)</code>', source, markup)


def mend_page(app, pagename, templatename, context, doctree) -> None:
    # sphinx-thebe asks a remote host for its code, and writes its script twice: the book runs offline, without it
    scripts = context.get("script_files", [])
    scripts[:] = [js for js in scripts if "thebe" not in f"{js}{getattr(js, 'attributes', '')}".lower()]
    # docutils calls a bibliography a list although its entries are no list items, which confuses screen readers
    context["body"] = context.get("body", "").replace(
        '<div role="list" class="citation-list">', '<div class="citation-list">'
    )
    # myst-nb gives every fold of code one name for screen readers, in place of the words that it shows
    context["body"] = context["body"].replace('<summary aria-label="Toggle hidden content">', "<summary>")


def finish(app, error) -> None:
    if error or app.builder.format != "html":
        return
    package = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    for part in MATHJAX_PARTS:
        source, target = package / part, Path(app.outdir, "_static", "mathjax", part)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, target)
    Path(app.outdir, "_static", play.FILE).write_text(play.script(), encoding="utf-8")
    # the download button hands out the notebook to work in: stubs, no solutions
    for offered in Path(app.outdir, "_sources", "book").rglob("*.ipynb"):
        name = offered.relative_to(Path(app.outdir, "_sources", "book")).with_suffix("").as_posix()
        if Path(app.srcdir, "book", f"{name}.ipynb").exists():  # a page that is gone leaves its notebook behind
            nbformat.write(edition(name, "student"), offered)
    # a page whose source is gone would stay for ever, and be tested
    for path in Path(app.outdir, "book").rglob("*.html"):
        if path.relative_to(app.outdir).with_suffix("").as_posix() not in app.env.found_docs:
            path.unlink()


def setup(app) -> dict:
    app.add_config_value("book_solutions", BEHIND, "env")
    # a page must be built again when the code that makes it changed, not only when its text did
    own_code = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py")))
    app.add_config_value("book_code", hashlib.sha256(own_code.encode()).hexdigest(), "env")
    app.set_html_assets_policy("always")  # formulas in a cell's output need MathJax on pages whose text has none
    app.add_js_file(None, body=NAME_FOLDS + SPY_ON_CONTENTS)
    app.connect("config-inited", configure, priority=100)
    app.connect("env-get-outdated", lambda *_: [REFERENCE])
    app.connect("source-read", prepare_notebook)
    app.connect("doctree-read", fold_proofs)
    app.connect("html-page-context", mend_page, priority=900)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
