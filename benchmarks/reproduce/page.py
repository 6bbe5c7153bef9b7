"""A page of hand-written text with generated blocks between markers:

<!-- begin generated: NAME -->
...
<!-- end generated: NAME -->
"""

import re
from collections.abc import Mapping

from echo_sched.errors import DataError

BLOCK = re.compile(r"<!-- begin generated: (?P<name>[\w-]+) -->\n.*?<!-- end generated: (?P=name) -->", re.DOTALL)
MARKER = re.compile(r"<!-- (?:begin|end) generated: ")


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """The page with every block's text replaced. Raises DataError for a marker without its twin, for a block that
    nobody makes, and for one that the page does not show, or shows twice."""
    names = [found["name"] for found in BLOCK.finditer(page)]
    if len(MARKER.findall(page)) != 2 * len(names):
        raise DataError("a marker of a generated block has no twin")
    if sorted(names) != sorted(blocks):
        wrong = ", ".join(sorted(set(names) ^ set(blocks))) or "one that stands there twice"
        raise DataError(f"generated blocks of the page and of the program differ: {wrong}")

    def generated(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- begin generated: {name} -->\n{blocks[name]}\n<!-- end generated: {name} -->"

    return BLOCK.sub(generated, page)
