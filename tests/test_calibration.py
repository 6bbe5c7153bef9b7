"""Calibration end to end on a tiny model, and its parts on scripted runs."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibration.collect import collect, draw_sample
from calibration.flags import parse
from calibration.progress import progress
from calibration.run import ungated
from echo_sched import cli
from echo_sched.calibrate import main
from echo_sched.config import EngineConfig
from echo_sched.engine.measure import CostCurve
from echo_sched.errors import DataError, ProfileError
from echo_sched.loop import DecodeLoop
from echo_sched.loop.pricing import cost_table
from echo_sched.prompts import Prompt
from echo_sched.scheduler.cost import DraftingCost
from echo_sched.scheduler.fit import fit
from echo_sched.scheduler.plan import Load
from echo_sched.scheduler.profile import load_profile
from echo_sched.scheduler.starting_values import built_in_profile
from echo_sched.tree import Offers
from echo_sched.types import FinishReason, GateReading, Request, SamplingParams, StepOffers, StepRecord, TokenEvent
from tests.fakes import ScriptedDrafter
from tests.records import step_record
from tests.tiny_models import VOCAB_SIZE, WORDS, random_prompt, tiny_model


class WordTokenizer:
    """Ids are word lengths; no chat template."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [len(word) for word in text.split()]


class ScriptedLoop:
    """Gives every running request one token per step and records a reading per depth; remembers its load."""

    tokenizer: Any = WordTokenizer()
    vocab_size = 10
    max_model_len = 12

    def __init__(self) -> None:
        self.running: list[Request] = []
        self.most_running = 0
        self.last_record: StepRecord | None = None
        self.num_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    def add(self, request: Request) -> None:
        self.running.append(request)
        self.most_running = max(self.most_running, len(self.running))

    def step(self) -> list[TokenEvent]:
        self.num_steps += 1
        readings = tuple(
            GateReading(self.num_steps, request.request_id, depth, 0.5, depth == 1)
            for request in self.running
            for depth in (1, 2)
        )
        events = []
        for request in self.running:
            request.output_ids.append(1)
            if request.num_remaining == 0:
                request.finish = FinishReason("length")
            events.append(TokenEvent(request, (1,), "", request.finish))
        self.running = [request for request in self.running if request.finish is None]
        self.last_record = step_record(
            step=self.num_steps,
            num_decoding=1,
            num_levels=2,
            num_emitted=1,
            seconds={"draft": 0.25},
            gate_readings=readings,
            offers=StepOffers((), Offers.empty(), np.zeros(0, np.int64), np.zeros(0, np.int64)),
        )
        return events


def text_prompts(*texts: str) -> list[Prompt]:
    return [Prompt(text, None, row, None) for row, text in enumerate(texts, start=1)]


def test_prompts_that_cannot_run_are_counted_by_reason() -> None:
    prompts = text_prompts("one two", "a b c d e f g h i j k l", "incomprehensibilities", "three")
    sample = draw_sample(
        ScriptedLoop(), prompts, SamplingParams(max_new_tokens=4, seed=7), max_prompts=10, chat_template="auto"
    )
    assert {request.request_id for request in sample.requests} == {"row-1", "row-4"}
    assert [request.params.seed for request in sample.requests] == [7, 8]
    assert sample.num_skipped == 2
    assert sample.skip_reasons == {
        "longer than 12 tokens with the output": 1,
        "tokens outside the model's vocabulary": 1,
    }


def test_no_prompt_that_fits_is_an_error_with_the_reasons() -> None:
    with pytest.raises(DataError, match="longer than 12 tokens with the output: 2"):
        draw_sample(
            ScriptedLoop(), text_prompts("a " * 12, "b " * 13), SamplingParams(), max_prompts=5, chat_template="auto"
        )


def test_the_seed_decides_which_prompts_are_drawn() -> None:
    prompts = text_prompts(*["word"] * 30)

    def drawn(seed: int) -> list[str]:
        params = SamplingParams(max_new_tokens=4, seed=seed)
        sample = draw_sample(ScriptedLoop(), prompts, params, max_prompts=5, chat_template="auto")
        return [request.request_id for request in sample.requests]

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(drawn(1)) == 5


def test_collect_keeps_to_the_concurrency_and_to_every_reading() -> None:
    loop, progress_seen = ScriptedLoop(), []
    requests = [Request(f"row-{row}", (1,), SamplingParams(max_new_tokens=1 + row % 3)) for row in range(7)]
    trace = collect(loop, requests, concurrency=3, report=lambda done, total: progress_seen.append((done, total)))
    num_tokens = sum(1 + row % 3 for row in range(7))
    assert loop.most_running == 3
    assert all(request.finish is not None for request in requests)
    assert len(trace.readings) == 2 * num_tokens and trace.num_output_tokens == num_tokens
    assert trace.num_steps == loop.num_steps
    assert progress_seen[-1] == (num_tokens, num_tokens)


def test_cost_table_pools_noise_and_keeps_steps() -> None:
    curve = CostCurve(
        num_tokens=(1, 2, 4, 8, 16),
        cached_tokens=(128, 1024),
        seconds=((1.0, 2.0), (1.2, 2.0), (1.0, 2.0), (5.0, 9.0), (5.0, 9.0)),
        spread=((0.0, 0.0),) * 5,
        measured_on={"device": "cpu"},
    )
    table = cost_table(curve, DraftingCost.constant(0.1), curve.measured_on)
    assert [row[0] for row in table.seconds] == pytest.approx([1.0, 1.1, 1.1, 5.0, 5.0])
    assert [row[1] for row in table.seconds] == [2.0, 2.0, 2.0, 9.0, 9.0]
    assert table.seconds_for(3, 128) == pytest.approx(1.1)
    assert table.seconds_for(6, 128) == pytest.approx(3.05)


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 11.0, 11.0, 12.0, 13.0])
    with progress("work", clock=lambda: next(times)) as report:
        for done in range(1, 4):
            report(done, 100)
        report(100, 100)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["work: 2 of 100", "work: 100 of 100"]
    assert captured.out == ""


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten prompts that repeat themselves, so that the n-gram drafter has offers, and three unusable rows."""
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    rows = [json.dumps({"prompt": " ".join(WORDS[row : row + 4] * 6)}) for row in range(10)]
    rows += [json.dumps({"prompt": " ".join(WORDS)}), json.dumps({"prompt": ""}), "not json"]
    path.write_text("\n".join(rows))
    return path


def flags(prompts: Path, out: Path, model: Path, *more: str) -> list[str]:
    given = ["--model", str(model), "--max-new-tokens", "24", "--max-model-len", "96", "--max-batch-size", "4"]
    return [str(prompts), "--out", str(out), *given, "--max-depth", "4", "--branching", "2", *more]


def test_calibrate_writes_a_profile_that_loads_and_says_where_it_came_from(
    model_folder: Path, prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.json"
    cost = ("--cost-tokens", "1,4,16", "--cost-cached", "16,4096", "--cost-repeats", "2")
    assert main(flags(prompts_file, out, model_folder, "--temperature", "0.7", "--seed", "3", *cost)) == 0

    profile = load_profile(out)
    assert profile.model.name == str(model_folder) and profile.model.fingerprint
    assert profile.drafter.name == "ngram"
    assert [depth.depth for depth in profile.depths] == [1, 2, 3, 4]  # nothing stopped the trees before D_max
    assert all(depth.n > 0 and depth.acceptance is not None for depth in profile.depths)
    assert 1 <= profile.target_depth < 4 and profile.typical_depth >= 1.0
    assert profile.cost is not None and profile.cost.num_tokens == (1, 4, 16)
    assert profile.cost.cached_tokens == (16,)  # 4096 do not fit into four slots of 96
    assert profile.cost.machine["torch"] == torch.__version__

    facts = profile.provenance
    assert facts["data"] == {
        "file": "prompts.jsonl",
        "sha256": hashlib.sha256(prompts_file.read_bytes()).hexdigest(),
        "num_prompts": 10,
        "num_prompts_in_file": 11,
        "num_skipped": 1,
        "skip_reasons": {"longer than 96 tokens with the output": 1},
        "num_bad_rows": 2,
        "bad_row_reasons": {"empty text": 1, "not JSON": 1},
    }
    assert (facts["settings"]["temperature"], facts["settings"]["seed"]) == (0.7, 3)
    assert (facts["settings"]["chat_template"], facts["engine"]["gate"]) == ("auto", "none")
    assert facts["tree_width"] == 2
    assert facts["weights"]
    assert facts["argv"][:3] == ["echo-sched", "calibrate", str(prompts_file)]

    lines = capsys.readouterr().out.splitlines()
    summary = json.loads(lines[-1])
    assert summary["out"] == str(out) and summary["num_prompts"] == 10 and summary["num_steps"] > 0
    assert summary["weights"] == facts["weights"]
    assert summary["checkpoints"] == profile.to_json()["checkpoints"]
    assert summary["target_depth"] == profile.target_depth
    assert any(line.split()[:2] == ["1", str(profile.depths[0].n)] for line in lines)  # the table
    assert sum(row["share_of_steps"] for row in facts["categories"]) == 1.0
    assert len(facts["throughput"]) == (len(profile.loads) if profile.checkpoints else 0)
    assert summary["report"] == str(tmp_path / "profile.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profile.html", "profile.json"]
    assert "other" in {line.split()[0] for line in lines if line.strip()}  # the kind of these prompts


def test_a_calibrated_profile_serves_its_own_model_and_no_other(
    model_folder: Path, prompts_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "profile.json"
    main(
        flags(
            prompts_file, out, model_folder, "--cost-repeats", "0", "--threshold-rule", "youden", "--max-prompts", "2"
        )
    )
    assert load_profile(out).cost is None
    small = EngineConfig(model=str(model_folder), profile=str(out), price="off", max_model_len=96, max_batch_size=2)
    assert DecodeLoop.from_config(small).profile == load_profile(out)
    other = tmp_path / "other"
    shutil.copytree(model_folder, other)
    tiny_model("llama", torch.float32, seed=1, vocab_size=VOCAB_SIZE).save_pretrained(other)
    with pytest.raises(ProfileError, match="was made for model"):
        DecodeLoop.from_config(small.model_copy(update={"model": str(other)}))


def test_costs_are_measured_at_start_unless_the_profile_has_them_from_this_machine(
    model_folder: Path, prompts_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "profile.json"
    main(flags(prompts_file, out, model_folder, "--cost-repeats", "1", "--max-prompts", "2"))
    profile = load_profile(out)
    small = EngineConfig(model=str(model_folder), profile=str(out), max_model_len=96, max_batch_size=2, k_max=5)
    loop = DecodeLoop.from_config(small)
    assert loop.profile == profile
    assert profile.cost is not None
    replace(profile, cost=replace(profile.cost, machine={"processor": "abacus"})).save(out)
    with caplog.at_level("INFO"):
        cost = DecodeLoop.from_config(small).profile.cost
    assert "another machine" in caplog.text and "abacus" in caplog.text
    assert cost is not None and cost.machine == profile.cost.machine and cost.num_tokens[-1] == 128
    assert loop.with_policy(small.model_copy(update={"k_max": 2})).profile.cost == profile.cost
    for free in ({"policy": "off"}, {"k_max": 0}, {"price": "off"}):  # who never reckons measures nothing
        replace(profile, cost=None).save(out)
        assert DecodeLoop.from_config(small.model_copy(update=free)).profile.cost is None


def test_costs_alone_leave_the_rest_of_a_profile_as_it_is(
    model_folder: Path, prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = (tmp_path / name for name in ("first.json", "second.json", "third.json"))
    small = ["--model", str(model_folder), "--max-model-len", "96", "--max-batch-size", "2", "--cost-only"]
    costs = ["--cost-tokens", "1,4", "--cost-cached", "16", "--cost-repeats", "1"]
    youden = ("--cost-repeats", "0", "--threshold-rule", "youden", "--max-prompts", "2")
    main(flags(prompts_file, first, model_folder, *youden))
    capsys.readouterr()
    assert main(["--profile", str(first), "--out", str(second), *small, *costs]) == 0
    captured = capsys.readouterr()
    known, measured = load_profile(first), load_profile(second)
    assert known.cost is None and measured.cost is not None
    assert measured.cost.num_tokens == (1, 4) and measured.cost.machine["torch"] == torch.__version__
    assert measured.provenance["cost"]["settings"]["cost_repeats"] == 1
    assert replace(measured, cost=None, provenance=known.provenance) == known
    assert json.loads(captured.out.splitlines()[-1])["cost"] == measured.cost.to_json()
    assert "timing forwards (runs): 6 of 6" in captured.err, "each of two sizes once to warm up, then twice"
    assert main(["--out", str(third), *small, *costs]) == 0
    assert load_profile(third).checkpoints == built_in_profile("ngram").checkpoints
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.html", "first.json", "second.json", "third.json"]


def test_what_makes_no_sense_without_prompts_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for words, complaint in (
        (["--out", "x.json"], "DATA is missing"),
        (["--cost-only", "--out", "x.json", "--trace", "t.gz"], "--trace does not go with --cost-only"),
        (["--cost-only", "--out", "x.json", "--cost-repeats", "0"], "--cost-repeats must be at least 1"),
        (["data.jsonl", "--out", "x.json", "--report", "x.json"], "name the same file"),
    ):
        assert cli.main(["calibrate", *words]) == 2
        assert complaint in capsys.readouterr().err


def test_trees_are_grown_to_the_width_that_the_profile_names(model_folder: Path, tmp_path: Path) -> None:
    args = parse(flags(tmp_path / "data", tmp_path / "out", model_folder, "--concurrency", "3", "--branching", "5"))
    loop = DecodeLoop.from_config(ungated(args))
    for num_requests in (1, 2, 3):
        assert set(loop.policy.plan(Load(num_requests, 0)).widths) == {5}


@pytest.mark.parametrize("signal", [True, False])
def test_a_signal_planted_in_the_drafter_is_found_through_the_engine(signal: bool, model_folder: Path) -> None:
    config = EngineConfig(
        model=str(model_folder), dtype="float64", gate="none", widen="off", price="off", k_max=96, max_depth=3,
        max_model_len=96, max_batch_size=4,
    )  # fmt: skip
    loop = DecodeLoop.from_config(config)
    params = SamplingParams(max_new_tokens=24, temperature=1.0)

    def requests() -> list[Request]:
        return [Request(f"row-{row}", random_prompt(8, seed=row), params) for row in range(16)]

    plain = requests()
    collect(loop, plain, concurrency=4, report=lambda done, total: None)
    truth = {request.request_id: request.output_ids for request in plain}
    drafter = ScriptedDrafter(truth, [0.7], VOCAB_SIZE, signal=signal)
    drafted = requests()
    recording = DecodeLoop(config, loop.target, drafter, loop.policy, loop.profile, recording=True)
    trace = collect(recording, drafted, concurrency=4, report=lambda done, total: None)

    assert [request.output_ids for request in drafted] == list(truth.values())
    assert sum(reading.accepted for reading in trace.readings) == sum(r.stats.num_accepted for r in drafted) > 0
    result = fit(trace.readings, max_depth=3)
    assert ([depth.depth for depth in result.checkpoints] == [1, 2, 3]) is signal
    assert signal or not result.checkpoints
    assert result.depths[0].acceptance == pytest.approx(0.7, abs=0.12)


@pytest.mark.parametrize(
    ("content", "more", "complaint"),
    [
        ("", (), "no usable prompt"),
        ('{"nothing": 1}\n', (), "no usable prompt"),
        (json.dumps({"prompt": " ".join(WORDS)}), (), "longer than 96 tokens"),
        ('{"prompt": "w1"}', ("--chat-template", "always"), "no chat template"),
        ('{"prompt": "w1"}', ("--max-new-tokens", "1"), "offered nothing"),
        ('{"prompt": "w1"}', ("--gate", "none"), "unrecognized arguments"),
        ('{"prompt": "w1"}', ("--cost-tokens", "1,none"), "argument --cost-tokens: expected numbers"),
        ('{"prompt": "w1"}', ("--concurrency", "2000"), "--concurrency should be less than or equal to 1024"),
        ('{"prompt": "w1"}', ("--max-prompts", "0"), "--max-prompts must be at least 1"),
        ('{"prompt": "w1"}', ("--auc-cut", "nan"), "--auc-cut must be in"),
        ('{"prompt": "w1"}', ("--max-depth", "0"), "--max-depth"),
        ('{"prompt": "w1"}', ("--drop-cut", "2"), "--drop-cut must be in"),
        ('{"prompt": "w1"}', ("--k-max", "0"), "--k-max must be at least 1"),
        ('{"prompt": "w1"}', ("--cost-repeats", "0"), "--threshold-rule throughput needs costs"),
        ('{"prompt": "w1"}', ("--profile", "x.json"), "--profile goes with --cost-only"),
        ('{"prompt": "w1"}', ("--cost-only",), "DATA does not go with --cost-only"),
        ('{"prompt": "w1"}', ("--report", "no/where/page.html"), "--report no/where/page.html: cannot write"),
        ('{"prompt": "w1"}', ("--temperature", "-1"), "temperature must not be negative"),
    ],
)
def test_what_cannot_be_calibrated_is_one_line_and_no_file(
    content: str, more: tuple[str, ...], complaint: str, model_folder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data, out = tmp_path / "data.jsonl", tmp_path / "profile.json"
    data.write_text(content)
    assert cli.main(["calibrate", *flags(data, out, model_folder, *more)]) == 2
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and complaint in errors[0]
    assert captured.out == ""
    assert not out.exists()


def test_an_unwritable_place_is_told_before_the_long_work(
    prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in (tmp_path / "missing" / "profile.json", tmp_path):
        assert cli.main(["calibrate", *flags(prompts_file, out, tmp_path / "no-model")]) == 2
        assert f"error: --out {out}" in capsys.readouterr().err
