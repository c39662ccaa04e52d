# SPDX-License-Identifier: Apache-2.0

"""Opens each page of the built documentation in a browser.

It saves a picture of each page, as wide as a screen and as wide as a phone,
for somebody to look at. It fails if a page is wider than the browser: then a
reader has to scroll each line. A code block may be wider, because it scrolls
by itself. It also fails if two elements of a page have the same id: then a
link leads to the first one, and may be meant for the other. And it fails if a
page loads anything from another site.

Run it with ``tox -e pages``. It needs Chromium on the PATH.
"""

from __future__ import annotations

import pathlib
import shutil
import sys

from playwright import sync_api

WIDTHS = (1280, 400)

# The elements that reach beyond the right edge of the browser, except what is
# inside a code block.
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  return [...document.body.querySelectorAll('*')]
    .filter(e => !e.closest('pre'))
    .filter(e => e.getBoundingClientRect().right > width + 1)
    .map(e => e.tagName.toLowerCase() + ': ' + e.textContent.trim()
      .replace(/\\s+/g, ' ').slice(0, 60));
}"""

# The ids that several elements of a page have.
SAME_IDS = """() => {
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  return [...new Set(ids.filter((id, at) => ids.indexOf(id) != at))];
}"""


def check(
    browser: sync_api.Browser,
    width: int,
    pages: list[pathlib.Path],
    pictures: pathlib.Path,
) -> int:
    """Look at the pages in one width.

    :returns: how many pages are wrong
    """
    context = browser.new_context(viewport={'width': width, 'height': 900})
    asked: list[str] = []

    def refuse(route: sync_api.Route) -> None:
        asked.append(route.request.url)
        route.abort()

    context.route('http*://**', refuse)
    tab = context.new_page()
    wrong = 0
    for path in pages:
        tab.goto(path.as_uri(), wait_until='domcontentloaded')
        tab.screenshot(
            path=pictures / f'{path.parent.name}-{path.stem}-{width}.png',
            full_page=True,
            timeout=300_000,  # milliseconds, for a busy machine
        )
        if wide := tab.evaluate(OVERFLOW):
            wrong += 1
            print(f'{path.name} is wider than {width} pixels:')
            print(*(f'    {each}' for each in wide[:10]), sep='\n')
        if same := tab.evaluate(SAME_IDS):
            wrong += 1
            print(f'{path.name} has these ids twice:', *same)
        if asked:
            wrong += 1
            print(f'{path.name} loads from other sites:', *asked)
            asked.clear()
    context.close()
    return wrong


def main(built: str, pictures: str) -> str | None:
    """Look at all pages.

    :param built: the directory of the HTML files
    :param pictures: the directory to which the pictures are written
    :returns: what is wrong, None if nothing is
    """
    program = shutil.which('chromium') or shutil.which('chromium-browser')
    if program is None:
        return 'chromium is not on the PATH: install the package chromium'
    pages = sorted(pathlib.Path(built).resolve().rglob('*.html'))
    if not pages:
        return f'{built} has no pages: build the documentation first'
    directory = pathlib.Path(pictures)
    directory.mkdir(parents=True, exist_ok=True)
    with sync_api.sync_playwright() as playwright:
        # Chromium has no sandbox for root, and the pages are our own.
        browser = playwright.chromium.launch(
            executable_path=program, args=['--no-sandbox']
        )
        wrong = sum(check(browser, each, pages, directory) for each in WIDTHS)
        browser.close()
    if wrong:
        return f'{wrong} pages are wrong; the pictures are in {directory}'
    print(f'{len(pages)} pages; look at the pictures in {directory}')
    return None


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
