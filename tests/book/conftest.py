"""One browser for the tests of a file."""

from pathlib import Path

import pytest
from browser import find_browser, launch
from playwright.sync_api import sync_playwright


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        if find_browser() is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no browser: install Chromium or Chrome, or name one in BROWSER_PATH")
        launched = launch(playwright)
        yield launched
        launched.close()
