"""`calibrate --trace` and `simulate` as a user runs them, on a tiny model, and what they refuse."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.trace import OfferTrace, read_trace, write_trace
from echo_sched import cli
from echo_sched.scheduler.cost import KEYS, CostTable
from echo_sched.scheduler.fields import Fields
from echo_sched.scheduler.profile import load_profile
from tests.tiny_models import WORDS, save_tiny_model

EXAMPLES = Path(__file__).parents[1] / "examples" / "cost_curves"


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(profile, trace) of a tiny model on texts that repeat themselves."""
    folder = tmp_path_factory.mktemp("calibrated")
    save_tiny_model(folder / "model")
    rows = [{"prompt": " ".join((WORDS[row : row + 3] * 4)[: 6 + row])} for row in range(6)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    profile, trace = folder / "profile.json", folder / "trace.jsonl.gz"
    flags = ["--max-new-tokens", "12", "--max-depth", "3", "--branching", "2", "--max-model-len", "96", "--concurrency"]
    words = ["calibrate", folder / "data.jsonl", "--out", profile, "--trace", trace, "--model", folder / "model"]
    costs = ["--cost-tokens", "1,8,32", "--cost-cached", "16", "--cost-repeats", "1"]
    assert cli.main([*map(str, words), *flags, "3", *costs]) == 0
    return profile, trace


def simulate(calibrated: tuple[Path, Path], out: Path, *more: str, trace: Path | None = None) -> int:
    profile, recorded = calibrated
    words = ["simulate", str(trace or recorded), "--profile", str(profile), "--output", str(out), "--k-max", "12"]
    return cli.main([*words, "--concurrency", "2,5", *more])


def test_from_prompts_to_a_comparison_of_policies(
    calibrated: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arms = ["off", "echo", "goodput:price=off"]
    assert simulate(calibrated, out, "--policies", ",".join(arms), "--num-requests", "7") == 0
    captured = capsys.readouterr()
    headline, document = json.loads(captured.out), json.loads(out.read_text())
    assert headline["output"] == str(out) and headline["ratios"] == document["ratios"]
    assert list(document["arms"]) == arms and list(document["ratios"]) == arms[1:]
    trace = read_trace(calibrated[1])
    lengths = [request.num_output_tokens for request in trace.header.requests]
    for arm, cells in document["arms"].items():
        for cell in cells.values():
            assert cell["num_output_tokens"] == sum(lengths) + lengths[0]  # seven requests: the first comes again
            assert 0 < cell["fairness"] <= 1 and cell["step_seconds"]["p50"] <= cell["step_seconds"]["p99"]
            assert (cell["share_k_max_zero"] == 1.0) is (arm == "off")
    for budgets in document["clairvoyant"].values():
        assert list(budgets) == ["0.5", "1", "2", "4", "8"]
        for cell in budgets.values():
            rules = cell["accepted_per_step"]
            assert rules["clairvoyant"] >= max(rules["equal_split"], rules["random"])
            assert cell["arms"]["off"]["accepted_per_step"] == 0.0
            assert all(arm["accepted_per_step"] <= rules["clairvoyant"] for arm in cell["arms"].values())
    assert document["trace"]["num_requests"] == 6 and document["provenance"]["argv"][1] == "simulate"
    assert "Simulation" in captured.err and "clairvoyant" in captured.err and "goodput" in captured.err
    assert simulate(calibrated, tmp_path / "again.json", "--policies", ",".join(arms), "--num-requests", "7") == 0
    again = json.loads((tmp_path / "again.json").read_text())
    assert all(again[part] == document[part] for part in ("arms", "ratios", "clairvoyant"))


@pytest.mark.parametrize("name", ["synthetic_flat_then_linear", "synthetic_proportional"])
def test_the_example_curves_are_clocks(name: str, calibrated: tuple[Path, Path], tmp_path: Path) -> None:
    out, curve = tmp_path / "out.json", EXAMPLES / f"{name}.json"
    assert simulate(calibrated, out, "--policies", "off", "--cost-curve", str(curve)) == 0
    document = json.loads(out.read_text())
    assert "made up" in document["cost"]["machine"]["synthetic"]
    seconds = document["arms"]["off"]["2"]["step_seconds"]["p50"]
    assert seconds == pytest.approx(document["cost"]["seconds"][1][0], rel=0.01)  # two roots


def test_the_synthetic_curves_tell_machines_apart() -> None:
    """Sixteen tokens: free beside one on the one, in proportion on the other."""
    flat, proportional = (
        CostTable.from_json(Fields(json.loads((EXAMPLES / f"synthetic_{name}.json").read_text()), "", KEYS))
        for name in ("flat_then_linear", "proportional")
    )
    assert flat.seconds_for(16, 0) < 1.05 * flat.seconds_for(1, 0)
    assert proportional.seconds_for(256, 0) > 10 * proportional.seconds_for(16, 0)
    assert flat.seconds_for(2048, 0) > 7 * flat.seconds_for(256, 0)


def refused(trace: OfferTrace, path: Path) -> Path:
    write_trace(path, trace)
    return path


def test_what_cannot_be_simulated_is_one_line(
    calibrated: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = read_trace(calibrated[1])
    out, bad = tmp_path / "out.json", tmp_path / "bad.gz"
    other = trace._replace(header=replace(trace.header, model=replace(trace.header.model, fingerprint="other")))
    stranger = trace._replace(header=replace(trace.header, drafter=replace(trace.header.drafter, name="stranger")))
    unpriced = tmp_path / "unpriced.json"
    replace(load_profile(calibrated[0]), cost=None).save(unpriced)
    (tmp_path / "curve.json").write_text("{}")
    cases = [
        (["--policies", "echo:branching=4"], trace, "--policies echo:branching=4: branching exceeds the trace's 2"),
        (["--policies", "quick"], trace, "--policies quick: policy"),
        (["--num-requests", "0"], trace, "--num-requests must be at least 1"),
        (["--concurrency", "0"], trace, "argument --concurrency: every number must be at least 1"),
        (["--cost-curve", str(tmp_path / "curve.json")], trace, "num_tokens is missing"),
        (["--cost-curve", str(tmp_path / "none.json")], trace, "cannot read cost curve"),
        (["--profile", str(unpriced)], trace, "the profile has no measured costs"),
        (["--output", str(tmp_path / "no" / "out.json")], trace, "there is no folder"),
        ([], other, "was made for model"),
        ([], stranger, "was made for drafter"),
    ]
    for more, wrong, complaint in cases:
        assert simulate(calibrated, out, *more, trace=refused(wrong, bad)) == 2
        captured = capsys.readouterr()
        assert complaint in captured.err and captured.err.startswith("error: ") and captured.out == ""
    assert not out.exists()
    bad.write_bytes(bad.read_bytes()[:-40])
    assert simulate(calibrated, out, trace=bad) == 2
    assert "cut off" in capsys.readouterr().err
