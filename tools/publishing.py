"""What the published book says of itself: descriptions, addresses, citation, licences, sitemap, 404."""

import html
import re
import shutil
import unicodedata
from pathlib import Path

import yaml
from docutils import nodes

ROOT = Path(__file__).resolve().parents[1]
CARD = "_static/card.png"  # the picture that a link in a message shows
LICENCES = ("LICENSE", "LICENSE-TEXT")
SIGNS = dict(
    zip(
        "partial nabla le ge ne to mapsto cdot times pm infty sum int sqrt in approx ll gg dots ell".split(),
        "∂∇≤≥≠→↦·×±∞Σ∫√∈≈≪≫…ℓ",
        strict=True,
    )
)

NOT_FOUND = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Page not found: {title}</title><meta name="robots" content="noindex">
<style>body {{ font: 1.1rem/1.5 system-ui, sans-serif; margin: 15vh auto; max-width: 34rem; padding: 0 1rem }}
:root {{ color-scheme: light dark }} body {{ background: Canvas; color: CanvasText }}</style></head>
<body><main><h1>This page is not here</h1>
<p>It may have moved: the book's chapters were renamed while it was written.</p>
<p><a data-to="" href="{root}">Begin at the front</a>, or <a data-to="search.html" href="{root}search.html">search the
book</a>.</p></main>
<script>
// Without a fixed address the root is what stands before /book/, and the words of the lost page are what to search for.
const root = "{root}" || location.href.split(/\\/book\\/|[^/]*$/)[0].replace(/\\/*$/, "/");
const words = location.pathname.split("/").pop().replace(/\\.html$/, "").replace(/[^a-z0-9]+/gi, " ");
for (const link of document.querySelectorAll("a")) link.href = root + link.dataset.to;
document.querySelector("[data-to='search.html']").search = "?q=" + encodeURIComponent(words);
</script></body></html>
"""


def plain_formula(tex: str) -> str:
    """A formula as a line of text: \\gamma\\le\\frac{1}{N} becomes γ≤1/N."""
    tex = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", tex)
    tex = re.sub(r"\\([A-Za-z]+)", lambda m: SIGNS.get(m[1]) or _greek(m[1]), tex)
    tex = re.sub(r"[\\{}]", "", re.sub(r"\\[,;:! ]|~", " ", tex.replace("\\|", "‖")))
    return re.sub(r"\s+", " ", tex).strip()


def _greek(name: str) -> str:
    size = "CAPITAL" if name[0].isupper() else "SMALL"
    name = {"lambda": "lamda", "epsilon": "epsilon", "varepsilon": "epsilon", "varphi": "phi"}.get(
        name.lower(), name.lower()
    )
    try:
        return unicodedata.lookup(f"GREEK {size} LETTER {name.upper()}")
    except KeyError:
        return ""  # a font or a space: what stands in its braces remains


def description(doctree) -> str:
    """The line under the title, which is the page's answer, as plain text of at most 200 letters."""
    paragraph = next(iter(doctree.findall(nodes.paragraph)), None) if doctree else None
    if paragraph is None:
        return ""
    paragraph = paragraph.deepcopy()
    for formula in list(paragraph.findall(nodes.math)):
        formula.parent.replace(formula, nodes.Text(plain_formula(formula.astext())))
    for note in list(paragraph.findall(nodes.footnote_reference)):
        note.parent.remove(note)
    text = re.sub(r"\s+", " ", paragraph.astext()).strip()
    return text if len(text) <= 200 else text[:200].rsplit(" ", 1)[0] + " …"


def page_head(app, pagename: str, context: dict, doctree) -> dict:
    """What layout.html puts into the head of a page."""
    address = app.config.book_address
    return {
        "title": re.sub(r"<[^>]+>", "", context.get("title", "")),
        "description": description(doctree) or app.config.project,
        "address": address and f"{address}{pagename}.html",
        "card": f"{address}{CARD}",
    }


def citation() -> dict:
    """Version and date of CITATION.cff, and its entry for a bibliography."""
    given = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    authors = " and ".join(f"{{{one['name']}}}" for one in given["authors"])
    released = given["date-released"]
    lines = {"title": given["title"], "author": authors, "year": released.year, "note": f"Version {given['version']}"}
    if "url" in given:
        lines["url"] = given["url"]
    body = "".join(f"  {key} = {{{value}}},\n" for key, value in lines.items())
    date = f"{released.day} {released:%B %Y}"
    return {"version": given["version"], "date": date, "bibtex": f"@book{{pdelab,\n{body}}}"}


def publish(app) -> None:
    """Licences beside the pages, the page that is shown for a wrong address, and where one is known the sitemap."""
    out, address = Path(app.outdir), app.config.book_address
    for name in LICENCES:
        shutil.copy(ROOT / name, out / f"{name}.txt")
    (out / "404.html").write_text(
        NOT_FOUND.format(root=html.escape(address), title=html.escape(app.config.project)), encoding="utf-8"
    )
    if address:
        places = "".join(f"<url><loc>{address}{name}.html</loc></url>\n" for name in sorted(app.env.found_docs))
        head = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
        (out / "sitemap.xml").write_text(f"{head}{places}</urlset>\n", encoding="utf-8")
