"""The trace file: what was offered at every position of a real run, written and read back; damage is told by line."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.pool import NO_NODE, labelled
from calibration.record import offer_trace, record, tracing
from calibration.trace import OfferTrace, read_trace, write_trace
from echo_sched.errors import DataError
from echo_sched.loop import DecodeLoop
from echo_sched.tree import ROOT
from echo_sched.types import Request, SamplingParams
from tests.fakes import ScriptedDrafter
from tests.loops import EOS_ID, run, tiny_loop, tiny_target
from tests.tiny_models import VOCAB_SIZE, random_prompt

SHAPE = {"max_depth": 4, "branching": 3, "max_batch_size": 3}


def answers(count: int, max_new_tokens: int = 16) -> list[Request]:
    return [
        Request(f"r{i}", random_prompt((5, 23, 1, 12)[i % 4], seed=i), SamplingParams(max_new_tokens, 0.9, seed=i))
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def scripted_loop() -> DecodeLoop:
    """A tiny target with a drafter that knows five of its answers, more or less."""
    target = tiny_target()
    plain = answers(5)
    run(tiny_loop(target, ScriptedDrafter({}, [0.0], VOCAB_SIZE), policy="off"), plain)
    truth = {request.request_id: list(request.output_ids) for request in plain}
    return tiny_loop(target, ScriptedDrafter(truth, [0.8, 0.7, 0.6], VOCAB_SIZE, signal=True), **SHAPE)


@pytest.fixture(scope="module")
def trace(scripted_loop: DecodeLoop) -> OfferTrace:
    requests = answers(5)
    pools = record(tracing(scripted_loop), requests, concurrency=3, report=lambda done, total: None)
    truth = scripted_loop.drafter.continuations  # type: ignore[attr-defined]
    assert {request.request_id: request.output_ids for request in requests} == truth, "drafting changes no answer"
    return offer_trace(scripted_loop, requests, pools, {"argv": ["here"]})


def test_every_position_of_every_answer_gets_a_full_tree(trace: OfferTrace, scripted_loop: DecodeLoop) -> None:
    truth = list(scripted_loop.drafter.continuations.values())  # type: ignore[attr-defined]
    assert [len(pools) for pools in trace.pools] == [len(answer) - 1 for answer in truth]
    assert trace.header.stop_ids == (EOS_ID,)
    for answer, request, pools in zip(truth, trace.header.requests, trace.pools, strict=True):
        for position, pool in enumerate(pools, start=1):
            deepest = min(4, request.max_new_tokens - position - 1)
            assert pool.depth.max(initial=0) == deepest
            for depth in range(1, deepest + 1):
                assert (pool.node[pool.depth == depth] != NO_NODE).sum() == 3  # a beam of three
            right = [int(token) for token in pool.token[pool.accepted]]
            assert right == answer[position : position + len(right)]
    sizes = {len(pool.depth) for pools in trace.pools for pool in pools}
    assert max(sizes) == 3 + 3 * 9  # what was not drafted further is there, too
    depths = {pool.num_accepted for pools in trace.pools for pool in pools}
    assert {0, 1, 2, 3, 4} <= depths


def test_a_trace_is_read_back_unchanged_and_written_the_same(trace: OfferTrace, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    write_trace(first, trace)
    again = read_trace(first)
    assert again.header == trace.header
    for ours, theirs in zip(sum(again.pools, ()), sum(trace.pools, ()), strict=True):
        assert all(np.array_equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
    write_trace(second, again)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl.gz", "b.jsonl.gz"]


def test_labels_follow_the_answer_and_nothing_else() -> None:
    columns = (
        np.array([1, 1, 2, 2, 2, 3]),
        np.array([ROOT, ROOT, 0, 0, 1, 3]),
        np.array([5, 6, 7, 8, 7, 9]),
        np.zeros(6),
        np.array([0, 1, -7, 3, 2, 4]),
    )
    pool = labelled(*columns, [5, 8])
    assert pool.accepted.tolist() == [True, False, False, True, False, False]  # the answer ends before depth 3
    assert pool.node.tolist() == [0, 1, NO_NODE, 3, 2, 4]
    assert labelled(*columns, [5, 8, 9, 1]).num_accepted == 3
    left_out = labelled(*columns, [5, 7, 9])  # right, and not drafted further
    assert left_out.accepted.tolist() == [True, False, True, False, False, False]


def lines_of(trace: OfferTrace, path: Path) -> list[dict[str, Any]]:
    write_trace(path, trace)
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write_lines(path: Path, lines: list[Any]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))


@pytest.mark.parametrize(
    ("line", "change", "complaint"),
    [
        (1, {"schema_version": 9}, "line 1: schema_version must be 1, got 9"),
        (1, {"candidates": "drafted"}, "line 1: the offers lack what was not drafted further"),
        (1, {"max_depth": 0}, "line 1: max_depth must be"),
        (1, {"colour": "red"}, "line 1: the document has an unknown key 'colour'"),
        (3, {"position": 5}, "line 3: expected position 2 of request 0, got 5 of 0"),
        (2, {"token": [1]}, "line 2: token must have"),
        (2, {"node": ["x"]}, "line 2: node must"),
        (2, {"accepted": [2]}, "line 2: accepted must"),
        (2, {"path_logp": [None]}, "line 2: path_logp must"),
        (2, {"parent": [7]}, "line 2: parent 7 of a candidate at depth 1 is no node at depth 0"),
        (2, {"depth": [3]}, "is no node at depth 2"),
        (2, {"depth": [9]}, "line 2: depth must ascend to 4 at most"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    line: int, change: dict[str, Any], complaint: str, trace: OfferTrace, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl.gz"
    lines = lines_of(trace, path)
    if line == 2 and "token" not in change:  # one candidate, so that one entry decides
        lines[1] |= {"depth": [1], "parent": [ROOT], "token": [3], "path_logp": [-1.0], "node": [0], "accepted": [0]}
    lines[line - 1] |= change
    write_lines(path, lines)
    with pytest.raises(DataError, match=f"trace {path}, .*") as error:
        read_trace(path)
    assert complaint in str(error.value)


def test_what_is_cut_off_or_no_trace_at_all_is_told(trace: OfferTrace, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    lines = lines_of(trace, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"line [0-9]+: the file is cut off or damaged"):
        read_trace(path)
    write_lines(path, lines[:-1])
    with pytest.raises(DataError, match=f"ends after line {len(lines) - 1}, within request 4: it is not whole"):
        read_trace(path)
    write_lines(path, [*lines, lines[-1]])
    with pytest.raises(DataError, match=f"line {len(lines) + 1}: there is no further request"):
        read_trace(path)
    path.write_bytes(gzip.compress(b"{\n"))
    with pytest.raises(DataError, match="line 1: not JSON"):
        read_trace(path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="is empty"):
        read_trace(path)
    path.write_text("plain text")
    with pytest.raises(DataError, match="cannot be read"):
        read_trace(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_trace(tmp_path / "missing.gz")


def test_a_label_that_is_no_path_or_outlives_the_answer_is_refused(trace: OfferTrace, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    lines = lines_of(trace, path)
    forked = {"depth": [1, 1], "parent": [-1, -1], "token": [3, 4], "path_logp": [-1, -1], "node": [0, None]}
    write_lines(path, [lines[0], lines[1] | forked | {"accepted": [1, 1]}, *lines[2:]])
    with pytest.raises(DataError, match="line 2: accepted must be one path"):
        read_trace(path)
    short = replace(trace.header.requests[0], num_output_tokens=2)
    chain = {"depth": [1, 2], "parent": [-1, 0], "token": [3, 4], "path_logp": [-1, -2], "node": [0, None]}
    header = lines[0] | {"requests": [vars(short)]}
    write_lines(path, [header, {"request": 0, "position": 1, **chain, "accepted": [1, 1]}])
    with pytest.raises(DataError, match="beyond the end of the answer"):
        read_trace(path)
