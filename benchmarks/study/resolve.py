"""From what a study declares to the arms of every block. Knows no engine and no prompts."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.study.cell import speed
from benchmarks.study.declared import Group, Study
from echo_sched.arms import REFERENCE, Arm, parse_arm
from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError

TREE, BEST_TREE = "tree:", "best-tree"
FLAG = "study"


class Outline(NamedTuple):
    """A block that has no requests yet."""

    name: str
    group: Group
    concurrency: int
    arms: list[Arm]
    left_out: list[str]  # trees with more nodes than the study allows


def outlines(
    study: Study, base: EngineConfig, profiles: Mapping[str, Path], grid: Mapping[str, Any] | None
) -> list[Outline]:
    """Every group at every concurrency. `grid`: the document of the study `grid`, where there is one.

    Raises ConfigError for a profile that has no file and for a best tree that nobody looked for.
    """
    found = []
    for group in study.groups:
        assert group.arms[0] == REFERENCE, "outputs are compared with plain decoding's, so that comes first"
        for concurrency in group.num_requests:
            texts = {text: _spelt_out(text, concurrency, grid) for text in group.arms}
            fitting = {text: full for text, full in texts.items() if _fits(full, concurrency, study.most_nodes)}
            sized = base.model_copy(update={"max_batch_size": concurrency})  # every arm has KV of its own
            arms = [_arm(text, full, concurrency, sized, profiles) for text, full in fitting.items()]
            name = f"{group.name} c{concurrency}".strip()
            found.append(Outline(name, group, concurrency, arms, [text for text in texts if text not in fitting]))
    return found


def num_nodes(shape: str) -> int:
    """Nodes of a tree with so many children per node at each depth: "3.2.1" -> 3 + 6 + 6."""
    children = [int(count) for count in shape.split(".")]
    return sum(prod(children[:depth]) for depth in range(1, len(children) + 1))


def best_tree(grid: Mapping[str, Any], concurrency: int) -> str | None:
    """The shape that gains most over plain decoding; None where the grid has not run whole at this concurrency."""
    cells = [cell for cell in grid["cells"] if cell["concurrency"] == concurrency]
    plain = {(cell["block"], cell["repeat"]): speed(cell) for cell in cells if cell["arm"] == REFERENCE}
    gains: dict[str, list[float]] = {
        arm: []
        for block in grid["blocks"].values()
        for arm in block["arms"]
        if block["concurrency"] == concurrency and arm.startswith(TREE)
    }
    for cell in cells:
        if cell["arm"] in gains:
            gains[cell["arm"]].append(speed(cell) / plain[cell["block"], cell["repeat"]])
    if not gains or not all(gains.values()):
        return None
    return max(gains, key=lambda arm: fmean(gains[arm])).removeprefix(TREE)


def _spelt_out(text: str, concurrency: int, grid: Mapping[str, Any] | None) -> str:
    """`best-tree` replaced by the tree that it stands for."""
    if text != BEST_TREE:
        return text
    shape = None if grid is None else best_tree(grid, concurrency)
    if shape is None:
        raise ConfigError(
            f"no best tree for concurrency {concurrency} is known: run the study grid first, into the same folder"
        )
    return TREE + shape


def _fits(text: str, concurrency: int, most_nodes: int | None) -> bool:
    if most_nodes is None or not text.startswith(TREE):
        return True
    return num_nodes(text.removeprefix(TREE)) * concurrency <= most_nodes


def _arm(text: str, full: str, concurrency: int, base: EngineConfig, profiles: Mapping[str, Path]) -> Arm:
    if full.startswith(TREE):
        return Arm(text, _tree_config(full.removeprefix(TREE), concurrency, base))
    plain, _, profile = full.partition("@")
    config = parse_arm(plain, base, FLAG).config
    if profile and profile not in profiles:
        raise ConfigError(f"the arm {text} needs a profile file: --profiles {profile}=FILE")
    return Arm(text, config.model_copy(update={"profile": str(profiles[profile])}) if profile else config)


def _tree_config(shape: str, concurrency: int, base: EngineConfig) -> EngineConfig:
    """The whole tree for every request of a full batch, whatever it costs."""
    children: Sequence[int] = [int(count) for count in shape.split(".")]
    return base.model_copy(
        update={
            "policy": "table",
            "shapes": f"1={shape}",
            "price": "off",
            "k_max_rule": "fixed",
            "k_max": num_nodes(shape) * concurrency,
            "max_depth": len(children),
            "branching": max(children),
        }
    )
