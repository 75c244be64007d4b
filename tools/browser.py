"""The browser in which built pages are tested and measured."""

import os
import shutil
from pathlib import Path

MAC_CHROME = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]


def find_browser() -> str | None:
    """The browser named by BROWSER_PATH, one that is installed, or None for Playwright's own."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    found = [shutil.which(name) for name in names] + [MAC_CHROME if Path(MAC_CHROME).exists() else None]
    return next((path for path in [os.environ.get("BROWSER_PATH"), *found] if path), None)


def launch(playwright):
    return playwright.chromium.launch(executable_path=find_browser(), chromium_sandbox=False, args=QUIET)
