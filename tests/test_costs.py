"""What the cost benchmarks make of their measurements."""

import pytest

from benchmarks.sampling_arms import BASELINE, arms
from benchmarks.sampling_cost import Steps, steps_of, summary
from echo_sched.types import LogprobParams, SamplingParams
from tests.records import step_record


def test_every_arm_asks_for_what_it_is_called() -> None:
    known = arms(vocab_size=500)
    params = {name: fields.params for name, fields in known.items()}
    assert params[BASELINE] == SamplingParams(temperature=0.0)
    assert [name for name, param in params.items() if param.greedy] == [BASELINE, "greedy, penalties"]
    assert {name for name, param in params.items() if param.penalises} == {
        "greedy, penalties",
        "penalties",
        "all of them",
    }
    assert params["top-k and top-p"].top_k == 50 and params["top-p"].top_k == -1
    assert all(0 <= token < 500 for token, _ in params["logit bias"].logit_bias)
    assert [name for name, fields in known.items() if fields.logprobs] == ["logprobs", "all of them"]
    assert known["logprobs"].logprobs == LogprobParams(top_logprobs_num=5)


def test_only_steps_in_which_all_decode_count() -> None:
    seconds = {"schedule": 0.25, "draft": 0.0, "verify": 1.0, "accept": 0.5, "commit": 0.25}
    records = [
        step_record(num_decoding=2, num_prompt_tokens=7, num_emitted=2, seconds=seconds),
        step_record(num_decoding=3, num_emitted=5, seconds=seconds),
        step_record(num_decoding=2, num_emitted=2, seconds=seconds),
    ]
    assert steps_of(records, batch_size=3) == Steps([2.0], [0.5], [5])


def test_ratios_are_paired_by_repeat() -> None:
    mine = [Steps([2.0, 4.0, 3.0], [1.0, 1.0, 1.5], [3, 3, 6]), Steps([8.0], [2.0], [3])]
    baseline = [Steps([1.0], [0.1], [3]), Steps([4.0], [0.1], [3])]
    cell = summary(mine, baseline)
    assert cell["step_seconds"] == {"median": 5.5, "low": 3.0, "high": 8.0}
    assert cell[f"step_over_{BASELINE}"] == {"median": 2.5, "low": 2.0, "high": 3.0}
    assert cell["accept_share"] == {"median": pytest.approx(7 / 24), "low": 0.25, "high": pytest.approx(1 / 3)}
    assert cell["num_steps"] == 3 and cell["tokens_per_step"] == 4.0
