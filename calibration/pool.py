"""One position's candidates as columns: checked when read, labelled when recorded. Knows no file and no model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from echo_sched.errors import DataError
from echo_sched.scheduler.fields import is_number
from echo_sched.tree import ROOT, BoolArray, FloatArray, IntArray

NO_NODE = -2  # was not drafted further


class Pool(NamedTuple):
    """Arrays [C], depths ascending."""

    depth: IntArray
    parent: IntArray  # number of a node of this pool, or ROOT
    token: IntArray
    path_logp: FloatArray
    node: IntArray  # its own number, or NO_NODE
    accepted: BoolArray  # the answer goes on with the tokens of the path from the root to here

    def take(self, rows: IntArray) -> "Pool":
        depth, parent, token, path_logp, node, accepted = self
        return Pool(depth[rows], parent[rows], token[rows], path_logp[rows], node[rows], accepted[rows])

    @staticmethod
    def concat(pools: Sequence["Pool"]) -> "Pool":
        """End to end; node numbers stay each pool's own."""
        none, no_numbers, no_flags = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_)
        return Pool(
            np.concatenate([none, *(pool.depth for pool in pools)]),
            np.concatenate([none, *(pool.parent for pool in pools)]),
            np.concatenate([none, *(pool.token for pool in pools)]),
            np.concatenate([no_numbers, *(pool.path_logp for pool in pools)]),
            np.concatenate([none, *(pool.node for pool in pools)]),
            np.concatenate([no_flags, *(pool.accepted for pool in pools)]),
        )

    @property
    def num_accepted(self) -> int:
        """Depth of the deepest accepted candidate: most tokens that any tree of these can have accepted."""
        return int(self.accepted.sum())


def labelled(
    depth: IntArray, parent: IntArray, token: IntArray, path_logp: FloatArray, node: IntArray, answer: Sequence[int]
) -> Pool:
    """A pool whose answer goes on with the tokens `answer`. Depths ascend."""
    on_path = {ROOT}
    accepted = np.zeros(len(depth), np.bool_)
    for row, (level, above, word, number) in enumerate(
        zip(depth.tolist(), parent.tolist(), token.tolist(), node.tolist(), strict=True)
    ):
        if above in on_path and level <= len(answer) and answer[level - 1] == word:
            accepted[row] = True
            if number >= 0:
                on_path.add(number)
    return Pool(depth, parent, token, path_logp, np.where(node < 0, NO_NODE, node), accepted)


def pool_to_columns(pool: Pool) -> dict[str, list[Any]]:
    """JSON-able; `pool_from_columns` reads it back unchanged."""
    columns = {name: column.tolist() for name, column in pool._asdict().items()}
    columns["node"] = [None if number == NO_NODE else number for number in columns["node"]]
    columns["accepted"] = [int(value) for value in columns["accepted"]]
    return columns


def pool_from_columns(columns: Mapping[str, list[Any]], deepest: int) -> Pool:
    """Raises DataError, naming the column, for what no drafter could have offered."""
    size = len(columns["depth"])
    for name, column in columns.items():
        if len(column) != size:
            raise DataError(f"{name} must have {size} entries like depth, got {len(column)}")
    if not all(map(is_number, columns["path_logp"])):
        raise DataError("path_logp must be a list of finite numbers")
    if not all(value in (0, 1) and isinstance(value, int) for value in columns["accepted"]):
        raise DataError("accepted must hold 0 and 1 only")
    pool = Pool(
        _integers(columns, "depth", 1),
        _integers(columns, "parent", ROOT),
        _integers(columns, "token", 0),
        np.array(columns["path_logp"], np.float64),
        _integers(columns, "node", 0, missing=NO_NODE),
        np.array(columns["accepted"], np.bool_),
    )
    _check_tree(pool, deepest)
    return pool


def _integers(columns: Mapping[str, list[Any]], name: str, minimum: int, missing: int | None = None) -> IntArray:
    values = [missing if value is None and missing is not None else value for value in columns[name]]
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not (minimum <= value < 2**31 or value == missing):
            raise DataError(f"{name} must hold integers of at least {minimum}, got {value!r}")
    return np.array(values, np.int64)


def _check_tree(pool: Pool, deepest: int) -> None:
    """Parents stand before their children, one depth above; the accepted are one path from the root."""
    nodes = {ROOT: (0, True)}  # number -> (depth, accepted)
    siblings, last_depth, num_accepted = set[tuple[int, int]](), 0, 0
    rows = zip(*(pool[index].tolist() for index in (0, 1, 2, 4, 5)), strict=True)
    for depth, parent, token, node, accepted in rows:
        if not last_depth <= depth <= deepest:
            raise DataError(f"depth must ascend to {deepest} at most, got {depth} after {last_depth}")
        above, on_path = nodes.get(parent, (None, False))
        if above != depth - 1:
            raise DataError(f"parent {parent} of a candidate at depth {depth} is no node at depth {depth - 1}")
        if (parent, token) in siblings:
            raise DataError(f"token {token} is offered twice below node {parent}")
        if accepted and not (on_path and num_accepted == depth - 1):
            raise DataError(f"accepted must be one path from the root, and is not at depth {depth}")
        if node in nodes:
            raise DataError(f"node {node} is there twice")
        siblings.add((parent, token))
        last_depth, num_accepted = depth, num_accepted + accepted
        if node != NO_NODE:
            nodes[node] = (depth, accepted)
