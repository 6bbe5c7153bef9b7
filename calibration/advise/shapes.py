"""The trees that are tried: chains first, then branches on the best of them; and ways to prune. Settings only."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from echo_sched.arms import REFERENCE, Arm
from echo_sched.config import EngineConfig

Shape = tuple[int, ...]  # children per node at each depth

LONGEST_CHAIN = 8
MOST_NODES = 24  # per request
MOST_CHILDREN = 4
PRUNED_DEPTH, PRUNED_WIDTH = 4, 3  # of the tree that pruning starts from
PRUNED_NODES = PRUNED_DEPTH * PRUNED_WIDTH


def chains() -> list[Shape]:
    """One node at each depth, 1 to LONGEST_CHAIN of them."""
    return [(1,) * length for length in range(1, LONGEST_CHAIN + 1)]


def branched(length: int) -> list[Shape]:
    """Trees as deep as a chain, with siblings where they are likeliest to be needed: at the root, then below it."""
    heads = [(2,), (3,), (4,)] if length == 1 else [(2,), (3,), (2, 2), (3, 2)]
    shapes = [head + (1,) * (length - len(head)) for head in heads]
    return [shape for shape in shapes if num_nodes(shape) <= MOST_NODES]


def num_nodes(shape: Shape) -> int:
    return sum(accumulate(shape, mul))


def shape_text(shape: Shape) -> str:
    return ".".join(map(str, shape))


def plain(base: EngineConfig) -> Arm:
    return Arm(REFERENCE, base.model_copy(update={"policy": REFERENCE}))


def tree_arm(base: EngineConfig, shape: Shape) -> Arm:
    """The same tree for everybody, whatever it costs."""
    return Arm(shape_text(shape), base.model_copy(update={"policy": "table", "shapes": f"1={shape_text(shape)}"}))


def pruning_arms(base: EngineConfig, concurrency: int) -> dict[str, Arm]:
    """By when the same tree is pruned. Half of its nodes are left where a budget decides before verification."""
    tree = {"max_depth": PRUNED_DEPTH, "branching": PRUNED_WIDTH, "widen": "off"}
    whole, half = concurrency * PRUNED_NODES, concurrency * PRUNED_NODES // 2
    settings: dict[str, dict[str, object]] = {
        "neither": {"policy": "echo", "gate": "none", "k_max": whole},
        "while drafting": {"policy": "echo", "gate": "sparse", "k_max": whole},
        "before verifying": {"policy": "dynamic", "k_max": half},
        "both": {"policy": "goodput", "k_max": half},
    }
    return {when: Arm(f"prune {when}", base.model_copy(update=tree | more)) for when, more in settings.items()}


def largest_budget(concurrencies: Sequence[int]) -> int:
    """K_max under which no tree is cut."""
    return max(concurrencies) * MOST_NODES
