"""Write the figures of docs/performance.md and of the README from the results of asv that are committed.

    python asv_bench/performance_page.py            # after new results: writes the tables and the charts
    python asv_bench/performance_page.py --check    # exits with 1 where one is not that of the results

A table replaces what is between the comments ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``; the
text around them is written by hand. Charts go to docs/_static. Both are committed, since the pages are also read
outside of the site, and a test compares them with the results.
"""

import argparse
import re
import sys
from pathlib import Path

from upsweep_bench import charts, headlines, page_tables
from upsweep_bench.charts import Panel
from upsweep_bench.committed import Results

CHECKOUT = Path(__file__).parents[1]
PAGES = CHECKOUT / "docs" / "performance.md", CHECKOUT / "README.md"
CHARTS = CHECKOUT / "docs" / "_static"
BLOCK = re.compile(r"<!-- figures: ([a-z-]+) -->\n.*?<!-- end of figures -->", re.DOTALL)


def blocks(results: Results) -> dict[str, list[str]]:
    """The lines of each block of both pages."""
    return {**page_tables.blocks(results), "headlines": headlines.table(results)}


def chart_files(results: Results) -> dict[str, tuple[str, list[Panel]]]:
    """The title and the panels of each chart, by its file."""
    speed = "Speed of upsweep relative to other packages", headlines.panels(results)
    return {**page_tables.page_charts(results), "speed.svg": speed}


def updated(text: str, lines: dict[str, list[str]]) -> str:
    """A page whose blocks of figures are replaced."""

    def block(match: re.Match[str]) -> str:
        return "\n".join([f"<!-- figures: {match[1]} -->", "", *lines[match[1]], "", "<!-- end of figures -->"])

    return BLOCK.sub(block, text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check
    results, old = Results(), []
    for path in PAGES:
        text = updated(path.read_text(), blocks(results))
        if text != path.read_text():
            old.append(path)
            if not check:
                path.write_text(text)
    for name, (title, panels) in chart_files(results).items():
        path = CHARTS / name
        if not path.exists() or charts.description(path) != charts.described(panels):
            old.append(path)
            if not check:
                charts.write(path, title, panels)
    for path in old:
        print(f"{path.relative_to(CHECKOUT)}: {'not that of the results' if check else 'written'}")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
