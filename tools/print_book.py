"""The book as one PDF: Chromium prints every page of the table of contents, with a bookmark for each.

    python tools/print_book.py [PAGE …]      _build/html/transformers-as-pdes.pdf; the book must be built

A link to another page of the book becomes one inside the file. The pages then offer the file as a download.
"""

import re
import sys
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

from browser import launch
from exercises import ROOT
from plain import pages

HTML = ROOT / "_build" / "html"
NAME = "transformers-as-pdes.pdf"
PRINT_BUTTON = re.compile(r'<button onclick="window\.print\(\)".*?</button>', re.DOTALL)
FOOT = (
    '<div style="font: 8px sans-serif; margin: 0 15mm; width: 100%; display: flex; justify-content: space-between">'
    '<span class="title"></span><span class="pageNumber"></span></div>'
)


def printed(browser, path: Path) -> tuple[str, bytes]:
    """The title of a built page, with its number, and the page on A4."""
    page = browser.new_page(viewport={"width": 794, "height": 1123}, color_scheme="light")
    page.goto(path.as_uri(), wait_until="load")
    page.evaluate("window.MathJax && MathJax.startup ? MathJax.startup.promise : null")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    # the playground prints the address of its state; one on this disk is of no use to a reader
    page.locator(".play-address:has-text('file:')").evaluate_all("found => found.forEach((one) => one.remove())")
    title = page.locator("article h1").first.evaluate("e => e.firstChild ? e.innerText.replace(/#$/, '').trim() : ''")
    made = page.pdf(format="A4", display_header_footer=True, header_template="<i></i>", footer_template=FOOT)
    page.close()
    return re.sub(r"\s+", " ", title), made


def join(parts: list[tuple[str, str, bytes]], html: Path) -> BytesIO:
    """(page, title, PDF) of each page as one file with bookmarks; links to files on this disk lead inside or go."""
    from pypdf import PdfWriter
    from pypdf.generic import ArrayObject, DictionaryObject, NameObject

    book, starts = PdfWriter(), {}
    for page, title, made in parts:
        starts[page] = len(book.pages)
        book.append(BytesIO(made), import_outline=False)
        book.add_outline_item(title=title, page_number=starts[page])
    for sheet in book.pages:
        kept = ArrayObject()
        for reference in sheet.get("/Annots", []):
            note = reference.get_object()
            address = str(note.get("/A", DictionaryObject()).get("/URI", ""))
            if address.startswith("file:"):
                place = Path(unquote(urlparse(urldefrag(address)[0]).path))
                name = place.with_suffix("").relative_to(html).as_posix() if place.is_relative_to(html) else ""
                if name not in starts:
                    continue
                del note["/A"]
                target = book.pages[starts[name]].indirect_reference
                note[NameObject("/Dest")] = ArrayObject([target, NameObject("/Fit")])
            kept.append(reference)
        sheet[NameObject("/Annots")] = kept
    book.add_metadata({"/Title": "Transformers as PDEs", "/Author": "The pdelab authors"})
    book.page_mode = "/UseOutlines"
    out = BytesIO()
    book.write(out)
    return out


def offer(html: Path) -> None:
    """The file in place of the button that prints, on every page, once it is there."""
    if not (html / NAME).exists():
        return
    for path in html.glob("book/**/*.html"):
        up = "../" * (len(path.relative_to(html).parts) - 1)
        link = f'<a href="{up}{NAME}" class="btn btn-sm dropdown-item" download>The whole book (.pdf)</a>'
        text = path.read_text(encoding="utf-8")
        if PRINT_BUTTON.search(text):
            path.write_text(PRINT_BUTTON.sub(link, text), encoding="utf-8")


def main() -> int:
    from playwright.sync_api import sync_playwright

    chosen = [f"book/{page}" for page in sys.argv[1:] or pages()]
    if missing := [name for name in chosen if not (HTML / f"{name}.html").exists()]:
        print(f"Not built: {', '.join(missing)}. Next: make book", file=sys.stderr)
        return 1
    parts = []
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name in chosen:
            print(f"  {name}", flush=True)
            parts.append((name, *printed(browser, HTML / f"{name}.html")))
        browser.close()
    (HTML / NAME).write_bytes(join(parts, HTML).getvalue())
    offer(HTML)
    print(f"The book is printed. Open {(HTML / NAME).as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
