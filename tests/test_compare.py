"""The comparison: fair order, honest numbers, and tokens that must be plain decoding's."""

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import compare
from benchmarks.acceptance import Acceptance
from benchmarks.comparison import Trials, check_exactness, plan_of, run_trials, summarise
from benchmarks.exactness import Fork, find_forks
from benchmarks.plan import Plan
from benchmarks.shared_engine import margin as margin_by_logits
from benchmarks.trial import Run
from echo_sched import cli
from echo_sched.arms import ARM_SETTINGS, parse_arms
from echo_sched.config import EngineConfig
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.sampling import sample
from echo_sched.errors import ConfigError, RequestError
from echo_sched.loop import DecodeLoop
from echo_sched.types import FinishReason, Request, SamplingParams, StepRecord, TokenEvent
from tests.fake_engine import NODES_PER_TREE, FakeEngine, Wrong, right
from tests.loops import processed_requests, references, tiny_loop, tiny_target
from tests.tiny_models import VOCAB_SIZE

NUM_PROMPTS, NUM_TOKENS = 5, 7


def small_plan(
    arms: str = "off,static,echo",
    concurrencies: Sequence[int] = (1, 4),
    num_repeats: int = 3,
    turn_seconds: float = 1.0,
) -> Plan:
    prompts = [(number,) for number in range(1, NUM_PROMPTS + 1)]
    params = SamplingParams(max_new_tokens=NUM_TOKENS, seed=20)
    return plan_of(parse_arms(arms, EngineConfig()), concurrencies, prompts, params, num_repeats, 2, turn_seconds)


def margin_of(prompt: Sequence[int], output: Sequence[int], params: SamplingParams) -> float:
    return len(prompt) + len(output) + params.seed / 100


def compared(wrong: Wrong = right, plan: Plan | None = None) -> tuple[Trials, dict[str, Any]]:
    plan = plan or small_plan()
    trials = run_trials(FakeEngine(wrong=wrong), plan)
    return trials, check_exactness(trials, plan, margin_of)


def test_without_turns_arms_follow_each_other_and_each_is_the_first_once() -> None:
    engine = FakeEngine()
    plan = small_plan(turn_seconds=0)
    run_trials(engine, plan)
    used = [policy for policy, _ in itertools.groupby(engine.history, key=lambda step: step[0])]
    repeats = (("off", "static", "echo"), ("static", "echo", "off"), ("echo", "off", "static"))
    # an arm that is the last at one concurrency and the first at the next runs on
    expected = [name for names in repeats for _ in plan.blocks for name in names]
    assert used == [name for name, _ in itertools.groupby(expected)]
    assert max(load for _, load in engine.history) == 4


def test_in_turns_arms_work_side_by_side_and_do_the_same() -> None:
    engine = FakeEngine()
    plan = small_plan(concurrencies=(4,), num_repeats=1, turn_seconds=1e-9)  # a step each
    trials, (in_a_row, _) = run_trials(engine, plan), compared(plan=small_plan(turn_seconds=0))
    measured = engine.history[-sum(trial.counts.num_steps for repeats in trials.values() for trial in repeats) :]
    assert [policy for policy, _ in measured[:6]] == ["off", "static", "echo"] * 2
    for name, (trial,) in trials.items():
        assert trial.outputs == in_a_row[name][0].outputs and trial.counts == in_a_row[name][0].counts


def test_the_clock_of_an_arm_stands_still_while_others_have_their_turn() -> None:
    pause = 0.02

    class Slow(FakeEngine):
        def beside(self, config: EngineConfig) -> FakeEngine:
            return (Slow if config.policy == "echo" else FakeEngine)(config.policy)

        def step(self) -> list[TokenEvent]:
            time.sleep(pause)
            return super().step()

    trials = run_trials(Slow(), small_plan(concurrencies=(4,), num_repeats=1, turn_seconds=pause / 10))
    slow, fast = trials["echo", 4][0], trials["off", 4][0]
    assert slow.duration >= pause * slow.counts.num_steps > 10 * fast.duration
    assert max(outcome.end for outcome in fast.outcomes) <= fast.duration


def test_numbers_of_an_arm() -> None:
    trials, _ = compared()
    summary = json.loads(json.dumps(summarise(trials), allow_nan=False))
    off, echo = summary["arms"]["off"]["1"], summary["arms"]["echo"]["1"]
    assert list(summary["arms"]) == ["off", "static", "echo"]
    assert list(summary["arms"]["echo"]) == ["1", "4"]
    assert off["num_output_tokens"] == echo["num_output_tokens"] == NUM_PROMPTS * NUM_TOKENS
    # concurrency 1, per request: the prompt's step, then 6 of one token or 3 of two; warm-ups are not among them
    assert off["num_steps"] == NUM_PROMPTS * 7 and off["num_steps_without_draft"] == NUM_PROMPTS * 6
    assert echo["num_steps"] == NUM_PROMPTS * 4 and echo["num_steps_without_draft"] == 0
    assert (off["acceptance_length"], off["draft_utilisation"], off["num_verified_nodes"]) == (1.0, 0.0, 0)
    assert echo["acceptance_length"] == 2.0
    assert echo["num_verified_nodes"] == NUM_PROMPTS * 3 * NODES_PER_TREE
    assert echo["draft_utilisation"] == pytest.approx(1 / NODES_PER_TREE)
    assert echo["truncated"] == {"2": 15} and echo["deepened"] == {"4": 30}
    assert echo["num_widened"] == 15 and echo["num_transferred"] == 30
    assert echo["num_prompt_tokens"] == NUM_PROMPTS
    assert echo["seconds"] == {"verify": pytest.approx(5.0), "draft": pytest.approx(1.5)}
    assert (off["num_draft_levels"], echo["num_draft_levels"]) == (0, 2 * 15)
    assert off["draft_level_cost"] is None
    assert echo["draft_level_cost"] == pytest.approx((1.5 / 30) / 0.25)
    assert (off["acceptance"]["length"], echo["acceptance"]["length"]) == (1.0, 2.0)
    assert echo["acceptance"]["num_verify_steps"] == NUM_PROMPTS * 3
    assert echo["repeatable"] is True
    low, high = echo["output_throughput_spread"]
    assert low <= echo["output_throughput"] <= high


def test_counting_is_not_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    pause, steps = 0.01, []

    def slow(self: Acceptance, record: StepRecord, events: Sequence[TokenEvent]) -> None:
        time.sleep(pause)
        steps.append(record)

    monkeypatch.setattr(Acceptance, "take", slow)
    trial = Run(FakeEngine(), small_plan().blocks[0].requests("a", NUM_PROMPTS, NUM_TOKENS), 1).finished()
    assert len(steps) == trial.counts.num_steps == NUM_PROMPTS * NUM_TOKENS
    assert trial.duration < len(steps) * pause / 2


def test_ratios_are_paired_by_repeat() -> None:
    trials, _ = compared()
    ratio = summarise(trials)["ratios"]["static"]["4"]
    expected = [
        mine.output_throughput / plain.output_throughput
        for mine, plain in zip(trials["static", 4], trials["off", 4], strict=True)
    ]
    assert ratio["values"] == expected
    assert ratio["range"] == [min(expected), max(expected)] and ratio["median"] == sorted(expected)[1]
    assert "off" not in summarise(trials)["ratios"]


def test_equal_tokens_are_found_equal() -> None:
    _, exactness = compared()
    assert exactness["equal"] is True
    assert exactness["arms"]["echo"]["4"]["num_equal"] == exactness["arms"]["echo"]["4"]["num_compared"] == 15
    assert exactness["control"]["concurrency"] == [1, 4] and exactness["control"]["share_equal"] == 1.0


def test_a_planted_difference_is_named() -> None:
    _, exactness = compared(
        lambda policy, load, prompt, position: (policy, load > 1, prompt, position) == ("echo", True, 3, 5)
    )
    assert exactness["equal"] is False
    assert exactness["arms"]["static"]["4"]["share_equal"] == exactness["arms"]["echo"]["1"]["share_equal"] == 1.0
    cell = exactness["arms"]["echo"]["4"]
    assert (cell["num_compared"], cell["num_equal"]) == (15, 12)
    margin = (1 + 5) + 22 / 100  # tokens before the fork; request 2 samples with seed 20 + 2
    fork = {"request": 2, "position": 5, "reference_token": 305, "token": -1, "margin": pytest.approx(margin)}
    assert cell["forks"] == [{"repeat": repeat, **fork} for repeat in range(3)]
    assert cell["largest_margin"] == pytest.approx(margin)
    assert exactness["control"]["share_equal"] == 1.0


def test_the_control_shows_plain_decoding_that_depends_on_the_load() -> None:
    _, exactness = compared(lambda policy, load, prompt, position: load == 4 and position == 0)
    assert exactness["control"]["num_equal"] < exactness["control"]["num_compared"]
    assert exactness["equal"] is False
    assert compared(plan=small_plan(concurrencies=[2]))[1]["control"] is None


def test_the_margin_of_a_fork_is_computed_once() -> None:
    plan, asked = small_plan(), []

    def margin(prompt: Sequence[int], output: Sequence[int], params: SamplingParams) -> float:
        asked.append((prompt, output, params.seed))
        return 0.0

    trials = run_trials(FakeEngine(wrong=lambda policy, *_: policy != "off" and _[1:] == (2, 1)), plan)
    check_exactness(trials, plan, margin)
    assert asked == [((2,), (200,), 21)]


def test_a_margin_knows_prompt_from_output() -> None:
    """Penalties and min_new_tokens count them apart, so a margin needs both."""
    loop = tiny_loop(tiny_target(), NGramDrafter())
    for request in processed_requests(8):
        expected = references("llama", 8, processed_requests)[request.request_id]
        for position in (0, 3, 8):
            output = expected.output_ids[:position]
            margin = margin_by_logits(loop, request.prompt_ids, output, request.params)
            assert margin == pytest.approx(expected.margins[position], abs=1e-6)


def test_repeats_that_differ_are_reported() -> None:
    trials, _ = compared()
    other, _ = compared(lambda policy, *_: policy == "echo")
    trials["echo", 1][2] = other["echo", 1][2]
    cells = summarise(trials)["arms"]
    assert cells["echo"]["1"]["repeatable"] is False and cells["echo"]["4"]["repeatable"] is True


def test_plain_decoding_must_equal_itself() -> None:
    plan = small_plan("off", concurrencies=[1])
    trials, exactness = compared(plan=plan)
    assert exactness["equal"] is True
    trials["off", 1][2] = compared(lambda *_: True, plan)[0]["off", 1][2]
    cell = check_exactness(trials, plan, lambda *_: 0.0)["arms"]["off"]["1"]
    assert (cell["num_compared"], cell["num_equal"]) == (2 * NUM_PROMPTS, NUM_PROMPTS)


def test_forks_are_first_differences() -> None:
    assert find_forks([[1, 2, 3], [4], [5, 6], [7]], [[1, 9, 9], [4], [5], [7, 8]]) == [
        Fork(0, 1, 2, 9),
        Fork(2, 1, 6, None),
        Fork(3, 1, None, 8),
    ]


def test_an_aborted_request_ends_the_comparison() -> None:
    class Aborting(FakeEngine):
        def step(self) -> list[TokenEvent]:
            return [TokenEvent(self.running[0], (), "", FinishReason("abort", message="no room"))]

    with pytest.raises(RequestError, match="no room"):
        Run(Aborting(), [Request("a", (1,), SamplingParams())], 1).finished()


def test_arms_are_policies_with_settings_of_their_own() -> None:
    base = EngineConfig(k_max=16)
    off, echo, ablated = parse_arms("off,echo,echo:gate=none:k-max=4", base)
    assert off.config == EngineConfig(k_max=16, policy="off")
    assert echo.config == EngineConfig(k_max=16, policy="echo")
    assert ablated.name == "echo:gate=none:k-max=4"
    assert ablated.config == EngineConfig(k_max=4, policy="echo", gate="none")
    assert [arm.name for arm in parse_arms("static", base)] == ["off", "static"]
    assert set(ARM_SETTINGS) <= set(EngineConfig.model_fields)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("off,fast", "policy"),
        ("echo:gate=maybe", "gate"),
        ("echo:model=other", "model"),
        ("echo:gate", "gate"),
        ("echo:k_max=-1", "k_max"),
        ("echo,echo", "twice"),
        ("echo,", "policy"),
    ],
)
def test_bad_arms_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_arms(text, EngineConfig())


# The command, on a tiny model.


@pytest.fixture
def flags(model_folder: Path, tmp_path: Path) -> list[str]:
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text("".join(json.dumps({"prompt": f"w{i} w2 w3 " * 4}) + "\n" for i in range(3)))
    files = ["--model", str(model_folder), "--dataset-path", str(dataset), "--output", str(tmp_path / "out.json")]
    sizes = ["--concurrency", "1,3", "--max-new-tokens", "12", "--max-model-len", "128", "--k-max", "8"]
    return [
        *files,
        *sizes,
        "--numerics",
        "exact",
        "--dtype",
        "float32",
        "--ignore-eos",
        "--num-warmups",
        "1",
        "--price",
        "off",
    ]


def test_the_command_writes_what_it_promises(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ["off", "static", "echo", "echo:gate=none:k_max=12", "dynamic:branching=4"]
    plot = tmp_path / "reliability.svg"
    more = ["--repeats", "2", "--temperature", "0.5", "--reliability", str(plot)]
    assert compare.main([*flags, "--arms", ",".join(arms), *more]) == 0
    document = json.loads((tmp_path / "out.json").read_text())
    captured = capsys.readouterr()
    headline = json.loads(captured.out.splitlines()[-1])
    assert list(document["arms"]) == arms and headline["output"] == str(tmp_path / "out.json")
    assert headline["ratios"]["echo"]["3"] == document["ratios"]["echo"]["3"]["median"]
    assert headline["equal"] is document["exactness"]["equal"] is True
    assert document["exactness"]["control"]["concurrency"] == [1, 3]
    for arm, cells in document["arms"].items():
        assert list(cells) == ["1", "3"]
        for cell in cells.values():
            assert cell["num_output_tokens"] == 3 * 12
            assert (cell["num_verified_nodes"] > 0) == (arm != "off")
            assert cell["repeatable"] is True
            check_acceptance(cell, drafts=arm != "off")
    acceptance_table = captured.err.partition("Drafts")[2]
    assert "outside" in acceptance_table and all(arm in acceptance_table for arm in arms)
    words = {element.text for element in ElementTree.parse(plot).iter() if element.text}
    assert {f"{arm}, concurrency 1" for arm in arms[1:]} <= words and "off, concurrency 1" not in words
    assert {"depth 1", "all depths", "path probability"} <= words
    assert document["dataset"]["num_too_long"] == 0
    assert document["argv"][:3] == ["echo-sched", "bench", "compare"]
    for key in ("versions", "machine", "git_commit", "timestamp", "args", "engine"):
        assert key in document


def check_acceptance(cell: dict[str, Any], *, drafts: bool) -> None:
    """What the engine recorded node by node adds up to what it counted."""
    acceptance = cell["acceptance"]
    assert acceptance["num_verify_steps"] > 0
    assert acceptance["length"] == pytest.approx(cell["acceptance_length"])
    # every verify step emits its accepted path and the bonus
    assert 1 + sum(at["share_reached"] for at in acceptance["by_depth"].values()) == pytest.approx(acceptance["length"])
    assert bool(acceptance["by_depth"]) == (cell["draft_level_cost"] is not None) == drafts
    nodes, confidence = (acceptance["reliability"][kind]["all"] for kind in ("nodes", "confidence"))
    assert nodes["num_nodes"] == sum(nodes["count"]) == cell["num_verified_nodes"]
    assert confidence["num_nodes"] == sum(at["num_with_node"] for at in acceptance["by_depth"].values())
    assert sum(at["num_reached"] for at in acceptance["by_depth"].values()) == cell["num_accepted_nodes"]
    if drafts:
        assert cell["draft_level_cost"] > 0 and cell["num_draft_levels"] >= cell["num_steps"] / 10


@pytest.mark.parametrize(("numerics", "code"), [("exact", 1), ("fast", 0)])
def test_a_planted_wrong_arm_fails_in_exact_and_is_reported_in_fast(
    numerics: str,
    code: int,
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def wrong(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
        tokens = sample(logits, params, positions)
        return [(t + 1) % VOCAB_SIZE if p == 12 + 8 else t for t, p in zip(tokens, positions, strict=True)]

    def beside(self: DecodeLoop, config: EngineConfig) -> DecodeLoop:
        loop = original(self, config)
        if config.policy != "static":
            return loop
        return DecodeLoop(config, loop.target, loop.drafter, loop.policy, loop.profile, sampler=wrong)

    original = DecodeLoop.beside
    monkeypatch.setattr(DecodeLoop, "beside", beside)
    assert compare.main([*flags, "--numerics", numerics]) == code
    captured = capsys.readouterr()
    exactness = json.loads((tmp_path / "out.json").read_text())["exactness"]  # written all the same
    forks = exactness["arms"]["static"]["3"]["forks"]
    assert [(fork["request"], fork["position"]) for fork in forks] == [(0, 8), (1, 8), (2, 8)]
    assert "largest margin at a fork None" in captured.err  # the control's: plain decoding equals itself
    assert "margin" in captured.err.partition("Drafts")[0]
    assert all(fork["margin"] > 0 for fork in forks)
    assert exactness["arms"]["echo"]["3"]["share_equal"] == 1.0
    assert json.loads(captured.out.splitlines()[-1])["equal"] is False
    assert ("static at concurrency 3, repeat 0: request 2 differs at output token 8" in captured.err) == (code == 1)


def test_bad_input_is_one_line_and_exit_code_2(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (
        ["--policy", "echo"],
        ["--numerics", "bogus"],
        ["--concurrency", "0"],
        ["--model", str(tmp_path / "nothing")],
        ["--dataset-path", str(tmp_path / "nothing")],
        ["--arms", "off,quick"],
        ["--output", str(tmp_path / "nothing" / "out.json")],
        ["--output", str(tmp_path)],
        ["--reliability", str(tmp_path)],
        ["--reliability", str(tmp_path / "plot.svg"), "--arms", "off"],
        ["--k-max", "-1"],
        ["--max-new-tokens", "128"],
    ):
        assert cli.main(["bench", "compare", *flags, *wrong]) == 2, wrong
        captured = capsys.readouterr()
        assert captured.out == ""
        *before, last = captured.err.splitlines()  # a progress bar may come before
        assert last.startswith("error: ") and not any("error" in line for line in before), captured.err
    assert not (tmp_path / "out.json").exists()


def test_a_concurrency_beyond_what_an_engine_serves_is_named_as_such(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^--concurrency should be less than or equal to 1024, got 2000$"):
        compare.main([*flags, "--concurrency", "1,2000"])
