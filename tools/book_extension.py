"""What the book needs from Sphinx beyond _config.yml: notebook editions, a local MathJax, one repository address."""

import hashlib
import json
import os
import re
import shutil
from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path

import nbformat
from build_book import SOLUTIONS
from docutils import nodes
from editions import edition
from exercises import BOOK, ROOT, code_folded, tagged
from figures import WIDE, frame_wide, mark_wide
from grading.kit import catalogue, facts
from plain import numbers, pages
from print_book import offer
from publishing import citation, page_head, plain_formula, publish
from reference import entries, footer
from search_index import write_index
from sphinx.errors import ConfigError

from pdebook.kit import play
from pdebook.ledger.sources import experiments

BEHIND, LEFT_OUT = SOLUTIONS
# made of docstrings and of what other pages say and use, so made anew each time
REFERENCE, STATEMENTS, INSTRUCTORS = "book/api", "book/statements", "book/instructors"
STATED = ("Theorem", "Proposition", "Lemma", "Corollary", "Definition")
FOLDED = {  # cells behind a click, by their tag, and the words of the click
    "solution": "Show the solution",
    "check": "Show the check of your answer",
    "asserts": "What the tests assert",
}
# thebe asks a remote host for its code; the others serve Sphinx's own search
UNUSED = ("thebe", "sphinx_highlight", "doctools")
ICON_RULES = re.compile(r'(?:\.fa-[\w-]+:+before,?)+\{content:"[^"]*"\}')  # 100 kB of the theme's style
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
    address = os.environ.get("BOOK_ADDRESS") or config.book_address
    config.book_address = address.rstrip("/") + "/" if address else ""
    options = config.html_theme_options
    if address := os.environ.get("BOOK_REPOSITORY") or options.get("repository_url"):
        options.update(repository_url=address, use_repository_button=True, use_issues_button=True)


def no_second_search(app) -> None:
    app.builder.search = False  # Sphinx's own index: whole pages, and nothing from a disk


def prepare_notebook(app, docname: str, source: list[str]) -> None:
    """Solutions behind a click or left out, links between pages in place of notebooks, the text of the reference."""
    path = Path(app.env.doc2path(docname))
    if docname == REFERENCE:
        source[0] = entries(source[0])
    if docname == STATEMENTS:
        source[0] = source[0].replace("{statements}", statements())
    if docname == INSTRUCTORS:
        source[0] = source[0].replace("{exercises}", exercise_tables())
    if path.suffix != ".ipynb":
        return
    notebook = nbformat.reads(source[0], 4)
    if text := footer(path):
        notebook.cells.append(nbformat.v4.new_markdown_cell(text))
    if app.config.book_solutions == LEFT_OUT:
        notebook.cells = [cell for cell in notebook.cells if not tagged(cell, "solution")]
    up = "../" * (docname.count("/") - 1)  # from the page to the chapters
    for cell in (cell for cell in notebook.cells if cell.cell_type == "markdown"):
        cell.source = re.sub(r'<a href="(\w+)\.ipynb', rf'<a href="{up}\1.html', cell.source)
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        if what := next((tag for tag in FOLDED if tagged(cell, tag)), None):
            cell.metadata.tags.append("hide-cell")
            prompts = {"code_prompt_show": FOLDED[what], "code_prompt_hide": "Hide it"}
            cell.metadata["mystnb"] = cell.metadata.get("mystnb", {}) | prompts
        elif code_folded(cell):
            cell.metadata.setdefault("tags", []).append("hide-input")
        mark_wide(cell)
        for output in cell.get("outputs", []):
            if markup := output.get("data", {}).get("text/html"):
                linked = link_pages(markup, titles(), boxes(Path(app.srcdir, "book")), up)
                linked = play.without_script(linked, f"../{up}_static/{play.FILE}")
                output["data"]["text/html"] = link_sources(
                    linked, app.config.html_theme_options, lines(Path(app.srcdir))
                )
    source[0] = json.dumps(notebook)


def statements() -> str:
    """A list of links for each page that states something, in the order of the book."""
    made = ""
    for page in pages():
        own = [(label, one) for label, one in numbers().items() if one.page == page and one.kind in STATED]
        if own:
            links = "".join(f"- {{prf:ref}}`{label}`{one.title and f': {one.title}'}\n" for label, one in own)
            made += f"## {titles()[page]}\n\n{links}\n"
    return made


def exercise_tables() -> str:
    """For each chapter its aims, and its exercises with label, level, time, points, aim and kind of answer."""
    known, held, made = catalogue(), facts(BOOK), ""
    for page in (page for page in pages() if page in held["aims"]):
        aims = "".join(f"{number}. {aim}\n" for number, aim in held["aims"][page].items())
        made += f"### {titles()[page]}\n\n{aims}\n| exercise | label | level | time | points | aim | answer |\n"
        made += "|---|---|---|---|---|---|---|\n"
        for label, one in ((label, one) for label, one in known.items() if one.chapter == page):
            title, level, time = re.match(r"(.*?), (★+), (\d+ min|open)", one.title).groups()
            title = re.sub(r"\$(.+?)\$", lambda formula: plain_formula(formula[1]), title)  # a link holds no formula
            time = time.replace(" ", "\N{NO-BREAK SPACE}")
            answer = "code" if one.coded else "words"
            row = (f"{{ref}}`{title} <{label}>`", f"`{label}`", level, time, f"{one.points:g}")
            made += f"| {' | '.join(row)} | {held['exercises'][label]['aim']} | {answer} |\n"
        made += "\n"
    return made


@cache
def titles() -> dict[str, str]:
    """Every page's title, from its text source."""
    sources = {page: (ROOT / "book" / f"{page}.md").read_text(encoding="utf-8") for page in pages()}
    return {page: re.search(r"^# (.+)$", text, re.MULTILINE)[1].strip() for page, text in sources.items()}


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


def link_pages(markup: str, titles: dict[str, str], boxed: dict[str, set[str]], up: str = "") -> str:
    """NAME.ipynb becomes NAME.html, a chapter's name its title, a link: to its verdict box, if it has one."""

    def chapter(match: re.Match) -> str:
        box, name = match[1], match[2]
        place = f"#{box}" if box in boxed.get(name, ()) else ""
        if name not in titles:
            return f"{name.replace('_', ' ')} (to come)"
        return f'<a href="{up}{name}.html{place}">{escape(titles[name])}</a>'

    def menu(match: re.Match) -> str:
        title = escape(titles.get(match[1], match[2]))
        return f'<option value="{match[1]}" data-words="{title}">{title}</option>'

    markup = re.sub(r'<option value="(\w+)" data-words="([^"]*)">[^<]*</option>', menu, markup)
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
    body = context.get("body", "")
    unused = (*UNUSED, *([] if "sd-" in body else ["design"]))
    for files in (context.get("script_files", []), context.get("css_files", [])):
        files[:] = [one for one in files if not any(name in described(one) for name in unused)]
    for button in (one for group in context.get("header_buttons", []) for one in group.get("buttons", [])):
        if button.get("label") == "download-pdf-button":
            button["text"] = "Print this page"
    context["book_page"] = page_head(app, pagename, context, doctree)
    context["book_cite"] = citation()
    # docutils calls a bibliography a list although its entries are no list items, which confuses screen readers
    context["body"] = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    # myst-nb gives every fold of code one name for screen readers, in place of the words that it shows
    body = context["body"].replace('<summary aria-label="Toggle hidden content">', "<summary>")
    context["body"] = frame_moving(frame_wide(body))


def frame_moving(body: str) -> str:
    """A box that scrolls around each wide picture of a figure to play with, and around nothing else of it."""

    def framed(match: re.Match) -> str:
        return f'{match[1]}<div class="scrolls">{match[2]}</div>' if float(match[3]) > WIDE else match[0]

    return re.sub(
        r'(<figure class="pdelab-explore"[^>]*>)(<svg viewBox="0 0 ([\d.]+).*?</svg>)', framed, body, flags=re.DOTALL
    )


def described(asset) -> str:
    """A script or a style as words: its file, and what it says where it stands in the page itself."""
    return f"{getattr(asset, 'filename', asset)} {getattr(asset, 'attributes', '')}".lower()


def finish(app, error) -> None:
    if error or app.builder.format != "html":
        return
    package = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    for part in MATHJAX_PARTS:
        source, target = package / part, Path(app.outdir, "_static", "mathjax", part)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, target)
    Path(app.outdir, "_static", play.FILE).write_text(play.script(), encoding="utf-8")
    style = Path(app.outdir, "_static", "styles", "pydata-sphinx-theme.css")
    style.write_text(ICON_RULES.sub("", style.read_text(encoding="utf-8")), encoding="utf-8")
    write_index(Path(app.outdir), [f"book/{page}" for page in pages() if f"book/{page}" != STATEMENTS])
    publish(app)
    offer(Path(app.outdir))
    Path(app.outdir, "genindex.html").unlink(missing_ok=True)  # of a build before there was a better list
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
    app.add_config_value("book_address", "", "html")
    app.connect("config-inited", configure, priority=100)
    app.connect("builder-inited", no_second_search)
    app.connect("env-get-outdated", lambda *_: [REFERENCE, STATEMENTS, INSTRUCTORS])
    app.connect("source-read", prepare_notebook)
    app.connect("doctree-read", fold_proofs)
    app.connect("html-page-context", mend_page, priority=900)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
