"""Advice: branches that find nothing are advised against, those that pay are not, and counts are what the steps did."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibration.advise.commit import measure_commit
from calibration.advise.compare import Workload, run_arms, summarise
from calibration.advise.main import advised, at_temperatures
from calibration.advise.shapes import MOST_NODES, branched, chains, largest_budget, num_nodes, plain, tree_arm
from calibration.advise.siblings import Siblings
from calibration.advise.trial import Counts, Trial
from calibration.advise.verdict import best_chain, judge
from echo_sched import cli
from echo_sched.config import EngineConfig
from echo_sched.engine.forward import Target
from echo_sched.engine.kv import KVCache, KVShape
from echo_sched.loop import DecodeLoop
from echo_sched.tree import ROOT, Offers
from echo_sched.types import NodeReading, Request, SamplingParams, StepOffers
from tests.fakes import ScriptedDrafter
from tests.loops import run, tiny_loop, tiny_target
from tests.records import step_record
from tests.tiny_models import VOCAB_SIZE, WORDS, random_prompt, save_tiny_model

CONCURRENCY = 2


class Script(dict[str, list[int]]):
    """The answer to a copy of request i, whatever the copy is called: its name ends with i."""

    def __missing__(self, name: str) -> list[int]:
        return self[name.rsplit("/", 1)[1]]


class FirstOrNothing(ScriptedDrafter):
    """Where it knows the target's token it says so first: a second sibling is never right."""

    def _children(self, request: Request, path: list[int], count: int) -> list[tuple[int, float]]:
        children, right = super()._children(request, path, count), self._right_token(request, path)
        tokens = sorted((token for token, _ in children), key=lambda token: token != right)
        return [(token, logp) for token, (_, logp) in zip(tokens, children, strict=True)]


class SharedTiny:
    """One tiny target, recording loops."""

    def __init__(self, target: Target, drafter: ScriptedDrafter) -> None:
        self.target, self.drafter = target, drafter

    def with_policy(self, config: EngineConfig) -> DecodeLoop:
        loop = tiny_loop(self.target, self.drafter, **config.model_dump())
        loop.recording = True
        return loop


BASE = EngineConfig(
    drafter="ngram", policy="table", price="off", k_max_rule="fixed", k_max=largest_budget([CONCURRENCY]),
    max_batch_size=CONCURRENCY, max_depth=8, branching=4,
)  # fmt: skip


def requests(count: int = 2) -> list[Request]:
    return [
        Request(str(i), random_prompt(4 + i, seed=i), SamplingParams(7, 0.0, ignore_eos=True)) for i in range(count)
    ]


@pytest.fixture(scope="module")
def script() -> Script:
    plainly = requests()
    run(tiny_loop(tiny_target(), ScriptedDrafter({}, [0.0], VOCAB_SIZE), policy="off"), plainly)
    return Script({request.request_id: list(request.output_ids) for request in plainly})


def test_worthless_siblings_keep_the_chain(script: Script) -> None:
    """Through the real loop, whatever the clock says: no non-first sibling is ever accepted."""
    engine = SharedTiny(tiny_target(), FirstOrNothing(script, [0.9, 0.7], VOCAB_SIZE))
    found, chain = advised(engine, BASE, Workload(requests(), 1), [CONCURRENCY], None)
    cell = found[str(CONCURRENCY)]
    assert json.loads(json.dumps(cell, allow_nan=False)) == cell
    assert f"keep the chain ({chain})" in cell["advice"]["sentence"]
    assert cell["advice"]["tree"] in (None, chain)
    trees = {name: row for name, row in cell["trees"].items() if name not in ("off", chain)}
    assert len(trees) >= 2 and all(row["num_other_siblings"] > 0 for row in trees.values())
    assert all(row["other_sibling_acceptance"] == 0.0 for row in trees.values())
    assert sum("nothing to find" in reason for reason in cell["advice"]["reasons"]) == len(trees)
    assert list(cell["chains"]) == ["off", *(".".join("1" * length) for length in range(1, 9))]
    assert all(row["repeatable"] for part in ("chains", "trees", "pruning") for row in cell[part].values())
    assert cell["chains"]["off"]["acceptance_length"] == 1.0 == cell["chains"]["off"]["ratio_to_off"]
    lengths = [cell["chains"][".".join("1" * length)]["acceptance_length"] for length in (1, 3)]
    assert 1.0 < lengths[0] < lengths[1]


def test_pruning_is_told_apart_by_where_nodes_end(script: Script) -> None:
    engine = SharedTiny(tiny_target(), ScriptedDrafter(script, [0.6, 0.5], VOCAB_SIZE, signal=True))
    found, _ = advised(engine, BASE, Workload(requests(), 1), [CONCURRENCY], None)
    pruning = found[str(CONCURRENCY)]["pruning"]
    assert list(pruning) == ["neither", "while drafting", "before verifying", "both"]
    verified = {when: row["num_verified_nodes"] for when, row in pruning.items()}
    assert verified["while drafting"] < verified["neither"]
    assert pruning["before verifying"]["num_dropped_nodes"] > 0 == pruning["neither"]["num_dropped_nodes"]


def test_siblings_that_are_right_are_counted(script: Script) -> None:
    """The right token has a random rank, so that others than the first are accepted too."""
    engine = SharedTiny(tiny_target(), ScriptedDrafter(script, [1.0], VOCAB_SIZE))
    trials = run_arms(
        engine, [plain(BASE), tree_arm(BASE, (4,)), tree_arm(BASE, (1,))], Workload(requests(), 1), 2, lambda: None
    )
    rows = summarise(trials)
    bush, chain = rows["4"], rows["1"]
    assert bush["num_other_siblings"] * 4 == bush["num_verified_nodes"] * 3
    assert 0 < bush["num_other_siblings_accepted"] <= bush["num_accepted_nodes"]
    assert chain["num_other_siblings"] == 0 and chain["other_sibling_acceptance"] is None
    assert bush["share_reached"] == {"1": bush["num_accepted_nodes"] / sum(_roots(trials["4"]))}


def test_the_likeliest_sibling_is_the_first_and_the_rest_are_others() -> None:
    """Request a: node 1 is accepted, whose sibling 0 is likelier. b: of equals the lower token, and it is accepted."""
    offers = Offers(
        np.array([0, 0, 0, 1, 1, 1]),
        np.array([ROOT, ROOT, 0, ROOT, ROOT, ROOT]),
        np.array([5, 6, 7, 5, 6, 8]),
        np.array([-0.1, -0.5, -0.6, -0.2, -0.2, -0.9]),
    )
    became = StepOffers(("a", "b"), offers, np.array([1, 1, 2, 1, 1, 1]), np.array([0, 1, 2, 0, 1, -2]))
    kept = (("a", False), ("a", True), ("a", False), ("b", True), ("b", False))
    readings = tuple(NodeReading(0, name, 1, -0.1, accepted) for name, accepted in kept)
    siblings = Siblings()
    siblings.take(step_record(num_verified=5, node_readings=readings, offers=became))
    assert (siblings.num_first, siblings.num_first_accepted) == (3, 1)
    assert (siblings.num_other, siblings.num_other_accepted, siblings.other_acceptance) == (2, 1, 0.5)


def _roots(trials: Sequence[Trial]) -> list[int]:
    return [trial.counts.num_root_steps for trial in trials]


def test_acceptance_is_told_at_each_temperature(script: Script) -> None:
    engine = SharedTiny(tiny_target(), FirstOrNothing(script, [1.0], VOCAB_SIZE))
    found = at_temperatures(engine, BASE, Workload(requests(), 1), 1, "1.1")
    assert list(found) == ["0", "0.3", "0.7", "1"]
    assert found["0"]["draft_utilisation"] == 1.0 > found["1"]["draft_utilisation"]  # the script is the greedy answer


# ---- verdicts on paper ----


def timed(speeds: Sequence[float], others: tuple[int, int] = (0, 0), gap_ms: float = 10.0) -> list[Trial]:
    """Repeats of an arm with these tokens per second, and (accepted, verified) non-first siblings."""
    counts = Counts(siblings=Siblings(num_other_accepted=others[0], num_other=others[1]))
    return [Trial(100 / speed, 100, gap_ms / 1000, counts, {}) for speed in speeds]


OFF = timed([100, 100, 100])


def verdict(chain: list[Trial], limit_ms: float | None = None, **trees: list[Trial]) -> Any:
    return judge("1.1", {"off": OFF, "1.1": chain, **trees}, list(trees), limit_ms)


def test_branches_are_advised_where_they_surely_pay() -> None:
    found = verdict(timed([120] * 3), t2=timed([130, 131, 129], (30, 100)), t3=timed([135, 119, 140], (30, 100)))
    assert found.tree == "t2" and found.sentence.startswith("use the tree t2: 1.30 (1.29 to 1.31) of plain decoding")
    assert any(reason.startswith("t3") and "not surely 2% faster" in reason for reason in found.reasons)


def test_the_chain_is_kept_where_branches_do_not_pay() -> None:
    slower = verdict(timed([120] * 3), t2=timed([121] * 3, (30, 100)))
    lucky = verdict(timed([120] * 3), t2=timed([150] * 3, (1, 100)))  # seconds say so, siblings cannot be why
    slow = verdict(timed([120] * 3), limit_ms=20.0, t2=timed([150] * 3, (30, 100), gap_ms=21.0))
    for found in (slower, lucky, slow):
        assert found.tree == "1.1" and found.sentence.startswith("keep the chain (1.1): 1.20")
    assert any("21.0 ms between outputs" in reason for reason in slow.reasons)


def test_plain_decoding_is_advised_where_nothing_pays() -> None:
    found = verdict(timed([90] * 3), t2=timed([85] * 3, (30, 100)))
    late = verdict(timed([120] * 3, gap_ms=30.0), limit_ms=20.0, t2=timed([110] * 3, (30, 100)))
    for advice in (found, late):
        assert advice.tree is None and advice.sentence.startswith("decode plainly")
        assert "keep the chain (1.1)" in advice.sentence


def test_the_best_chain_is_the_shortest_that_is_fast_enough() -> None:
    trials = {"off": OFF, "1": timed([110] * 3), "1.1": timed([149] * 3), "1.1.1": timed([150] * 3, gap_ms=50.0)}
    assert best_chain(trials, None) == "1.1"
    trials["1.1"] = timed([140] * 3)
    assert best_chain(trials, None) == "1.1.1" and best_chain(trials, 20.0) == "1.1"
    assert best_chain(trials, 1.0) == "1.1.1"  # none is allowed: the fastest is held against the limit later


# ---- shapes and commits ----


def test_shapes_are_chains_and_the_same_chains_with_siblings() -> None:
    assert chains()[0] == (1,) and len(chains()) == len(chains()[-1]) == 8
    for length in range(1, 9):
        for shape in branched(length):
            assert len(shape) == length and max(shape) > 1 and num_nodes(shape) <= MOST_NODES
    assert (3, 2, 1) in branched(3) and num_nodes((3, 2, 1)) == 15


def test_a_contiguous_path_moves_nothing_and_a_scattered_one_all() -> None:
    kv = KVCache(KVShape(1, 1, 2), num_slots=2, max_len=32, dtype=torch.float32, device=torch.device("cpu"))
    now = iter(range(100_000))
    found = measure_commit(kv, torch.device("cpu"), num_requests=2, lengths=(1, 4), clock=lambda: float(next(now)))
    assert {length: {layout: row["num_moved"] for layout, row in cell.items()} for length, cell in found.items()} == {
        "1": {"contiguous": 0, "scattered": 2},
        "4": {"contiguous": 0, "scattered": 8},
    }
    assert found["4"]["scattered"]["microseconds_per_accepted_token"] == pytest.approx(1e6 / 8)  # a second a look
    assert kv.num_free == 2


def test_the_command_writes_a_document_and_says_it_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_model(tmp_path / "model")
    rows = [{"prompt": " ".join((WORDS[row : row + 3] * 4)[: 6 + row])} for row in range(2)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["advise", tmp_path / "data.jsonl", "--model", tmp_path / "model", "--output", tmp_path / "out.json"]
    flags = ["--concurrency", "2", "--max-new-tokens", "6", "--repeats", "1", "--max-model-len", "64"]
    assert cli.main([*map(str, words), *flags]) == 0
    captured = capsys.readouterr()
    document = json.loads((tmp_path / "out.json").read_text())
    sentence = document["concurrency"]["2"]["advice"]["sentence"]
    assert captured.out.startswith(f"at concurrency 2: {sentence}")
    assert json.loads(captured.out.splitlines()[-1])["advice"]["2"]["sentence"] == sentence
    assert all(title in captured.err for title in ("Chains", "Pruning", "Commit", "temperature"))
    assert cli.main([*map(str, words), "--latency-limit-ms", "0"]) == 2
    assert "--latency-limit-ms must be above 0" in capsys.readouterr().err
