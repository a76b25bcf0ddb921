"""The documentation site in a browser: pages render without errors, links lead somewhere, the search finds names.

Needs the built site, whose folder UPSWEEP_SITE names, and Chromium.
"""

import functools
import html.parser
import http.server
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

SITE = Path(os.environ.get("UPSWEEP_SITE", ""))
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not SITE.name or not BROWSER, reason="UPSWEEP_SITE is not set, or no Chromium")
PAGES = ("index.html", "tutorial.html", "gallery/index.html", "guide/libraries.html",
         "reference/generated/upsweep.scan.html")  # fmt: skip


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """A handler that prints no line for each request."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    handler = functools.partial(QuietHandler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def visit(url, width=1300):
    """The page as the browser has it after its scripts, and the errors of its console."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
               "--virtual-time-budget=8000", f"--window-size={width},900", "--dump-dom", url]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if re.search(r"ERROR:CONSOLE|Uncaught", line)]


@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_renders_without_errors(address, page, width):
    text, errors = visit(f"{address}/{page}", width)
    assert errors == []
    assert "<h1" in text


def test_the_search_finds_a_function(address):
    text, errors = visit(f"{address}/search.html?q=discounted_cumsum")
    assert errors == []
    assert "reference/generated/upsweep.discounted_cumsum.html" in text


class Links(html.parser.HTMLParser):
    """The links of a page and the names that links may lead to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.names = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.names.add(named.get("id"))
        if tag == "a" and named.get("href"):
            self.links.add(named["href"])


def test_every_link_within_the_site_leads_somewhere():
    # The pages of asv are one script, which makes its links.
    files = (path for path in SITE.rglob("*.html") if path.relative_to(SITE).parts[0] != "asv")
    pages = {path.resolve(): Links(path.read_text()) for path in files}
    assert len(pages) > 100
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if not re.match(r"[a-z]+:", link):
                file, _, name = link.split("?")[0].partition("#")
                target = (path.parent / file).resolve() if file else path
                if not target.exists() or (name and target in pages and name not in pages[target].names):
                    broken.append(f"{path.name}: {link}")
    assert broken == []
