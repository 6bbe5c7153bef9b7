"""The page of a calibration: whole, self-contained, and holding what was found."""

import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from calibration.assemble import youden_profile
from calibration.categories import CategoryStats
from calibration.page import page, write_page
from calibration.page_figures import acceptance_figure
from calibration.result import Calibration
from calibration.throughput import BucketFit, Speeds, with_buckets
from echo_sched.errors import ConfigError
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.fit import fit
from echo_sched.scheduler.profile import Identity
from echo_sched.types import NodeReading
from tests.test_fit import ungated

VOID = {"meta", "br"}
COST = CostTable((1, 8, 64), (0, 512), ((1.0, 1.1), (1.5, 1.6), (4.0, 5.0)), DraftingCost.constant(0.05), {})
FACTS: dict[str, Any] = {
    "data": {"num_prompts": 40, "file": "<prompts> & more.jsonl"},
    "run": {"num_output_tokens": 1234, "num_steps": 567},
    "settings": {"seed": 17},
}


class Page(HTMLParser):
    """What a browser would make of it: tags in balance, links, text by section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.sections: dict[str, str] = {}
        self.figures: dict[str, int] = {}
        self._section = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("href", "src", "xlink:href", "data", "action")]
        if tag == "section":
            self._section = str(given["id"])
            self.sections[self._section], self.figures[self._section] = "", 0
        if tag == "svg":
            self.figures[self._section] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} is closed out of turn"
        self._section = "" if tag == "section" else self._section

    def handle_data(self, data: str) -> None:
        if self._section:
            self.sections[self._section] += data


@pytest.fixture(scope="module")
def found() -> Calibration:
    """Three depths, two of them with a gate for each of two loads."""
    readings = tuple(ungated({1: 0.6, 2: 0.7, 3: 0.7}, told=2))
    fitted = fit(readings, max_depth=4, num_resamples=50)
    fitted = fitted._replace(checkpoints=fitted.depths[:2])
    nodes = tuple(NodeReading(r.step, r.request_id, r.depth, math.log(r.confidence), r.accepted) for r in readings)
    profile = youden_profile(Identity("tiny", "1"), Identity("eagle3", "2"), fitted, nodes, COST, FACTS)
    curves = {1: ((0.0, 90.0), (0.3, 99.0)), 2: ((0.0, 99.0), (0.2, 100.5))}
    buckets = (
        BucketFit(0.5, 64, {1: 0.31, 2: 0.22}, Speeds(100.5, 98.25, 90.75), Speeds(97.5, 96.5, 95.5), curves),
        BucketFit(8.0, 4, {1: 0.0, 2: 0.1}, Speeds(50.5, 49.5, 48.5), None, curves),
    )
    categories = (CategoryStats("code", 40, 1.0, 2.25, (0.6, 0.4, None), (0.9, 0.8, None)),)
    return Calibration(
        with_buckets(profile, buckets), fitted, readings, nodes, categories, buckets, {1: 8, 64: 0}, trace=None
    )


def test_every_section_is_there_with_its_numbers(found: Calibration) -> None:
    seen = Page(page(found))
    assert seen.open == []
    assert seen.figures == {
        "depths": 0, "confidence": 1, "roc": 1, "reliability": 1, "acceptance": 1, "thresholds-by-load": 1, "costs": 1,
        "provenance": 0,
    }  # fmt: skip
    depth = found.fit.depths[1]
    assert f"{depth.auc:.3f}" in seen.sections["depths"] and f"{depth.conditional.auc:.3f}" in seen.sections["depths"]
    assert f"depth 1: {found.fit.depths[0].auc:.3f}" in seen.sections["roc"]
    assert f"depth 2: {depth.conditional.auc:.3f}" in seen.sections["roc"]
    for number in ("0.310", "0.220", "98.2", "95.5", "–", "K_max / B = 8"):
        assert number in seen.sections["thresholds-by-load"]
    assert "code" in seen.sections["acceptance"] and "2.250" in seen.sections["acceptance"]
    assert "50.00 ms" in seen.sections["costs"]
    assert '"seed": 17' in seen.sections["provenance"]


def test_nothing_is_fetched_and_nothing_runs(found: Calibration) -> None:
    text = page(found)
    seen = Page(text)
    assert all(link.startswith("#") for link in seen.links) and seen.links
    assert not {"script", "link", "img", "iframe", "metadata"} & set(seen.tags)
    assert "url(http" not in text and "@import" not in text and "<prompts>" not in text


def test_what_was_not_measured_the_page_says(found: Calibration) -> None:
    few = fit(found.readings[:2], max_depth=4, num_resamples=5)
    plain = found._replace(
        profile=youden_profile(found.profile.model, found.profile.drafter, few, (), None, FACTS),
        fit=few,
        readings=found.readings[:2],
        nodes=(),
        buckets=(),
        chosen_k_max={},
    )
    seen = Page(page(plain))
    assert "Not measured." in seen.sections["costs"] and seen.figures["costs"] == 0
    assert "same for every load" in seen.sections["thresholds-by-load"]


def test_a_share_of_nobody_is_not_drawn_as_none(found: Calibration) -> None:
    """Where no path reached the depth above there is no conditional acceptance: a gap, not a zero."""

    def drawn(share: float | None) -> str:
        last = found.fit.depths[-1]
        unsure = last._replace(conditional=replace(last.conditional, acceptance=share))
        return acceptance_figure(found._replace(fit=found.fit._replace(depths=(*found.fit.depths[:-1], unsure))))

    assert drawn(None) != drawn(0.0)


def test_the_same_result_is_the_same_page(found: Calibration, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_page(tmp_path / name, found)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    with pytest.raises(ConfigError, match="cannot write"):
        write_page(tmp_path / "nowhere" / "a.html", found)
