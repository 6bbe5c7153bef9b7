"""Profiles: strict reading, errors that name the key, refusal of another model or drafter; and their cost table."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_sched.errors import ProfileError
from echo_sched.scheduler.cost import KEYS, OPTIONAL_KEYS, CostTable, DraftingCost, Overhead
from echo_sched.scheduler.fields import Fields
from echo_sched.scheduler.profile import Identity, Profile, check_profile, load_profile
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES

VALID: dict[str, Any] = {
    "schema_version": 3,
    "model": {"name": "tiny", "fingerprint": "abc"},
    "drafter": {"name": "ngram", "fingerprint": None},
    "target_depth": 2,
    "typical_depth": 1.5,
    "loads": [0.5, 8.0],
    "checkpoints": [
        {"depth": 1, "thresholds": [0.4, 0.3], "auc": 0.8, "auc_low": 0.7, "auc_high": 0.9, "n": 100},
        {"depth": 3, "thresholds": [0.2, 0.0], "auc": 0.7, "auc_low": 0.65, "auc_high": 0.75, "n": 50},
    ],
    "no_checkpoint_reason": None,
    "depths": [
        {
            "depth": depth,
            "n": 10,
            "acceptance": 0.5,
            "mean_confidence": 0.6,
            "auc": None,
            "auc_low": None,
            "auc_high": None,
            "threshold": None,
            "conditional": {"n": 5, "acceptance": 0.5, "auc": 0.6, "auc_low": 0.5, "auc_high": 0.7},
        }
        for depth in (1, 2, 3)
    ],
    "acceptance": [
        {"depth": depth, "n": 300, "path_probability": [0.0, 0.4, 1.0], "acceptance": [0.0, 0.3, 0.9]}
        for depth in (1, 3)
    ],
    "cost": {
        "num_tokens": [1, 8, 32],
        "cached_tokens": [0, 100],
        "seconds": [[1.0, 2.0], [3.0, 5.0], [4.0, 8.0]],
        "drafting": {
            "num_requests": [1, 16],
            "start_seconds": [0.001, 0.002],
            "num_nodes": [1, 8, 24],
            "level_seconds": [0.001, 0.002, 0.004],
            "pair_seconds": 0.0001,
        },
        "machine": {"cpu": "any"},
    },
    "provenance": {"seed": 0},
}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """VALID with one value replaced."""
    data = copy.deepcopy(VALID)
    target: Any = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = to
    return data


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = Profile.from_json(VALID)
    assert profile.to_json() == VALID
    profile.save(tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == profile
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize("profile", BUILT_IN_PROFILES.values(), ids=BUILT_IN_PROFILES.keys())
def test_built_in_profiles_are_valid_and_match_any_model(profile: Profile) -> None:
    assert Profile.from_json(json.loads(json.dumps(profile.to_json()))) == profile
    check_profile(profile, Identity("whatever", "123"), Identity(profile.drafter.name, None))
    thresholds = [checkpoint.thresholds for checkpoint in profile.checkpoints]
    assert thresholds == sorted(thresholds, reverse=True)
    assert {1, profile.target_depth} <= {checkpoint.depth for checkpoint in profile.checkpoints}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed("schema_version", to=2), "schema_version must be 3, got 2; run calibrate again"),
        (changed("schema_version", to=True), "schema_version"),
        (changed("target_depth", to=0), "target_depth"),
        (changed("target_depth", to=2.0), "target_depth must be an integer"),
        (changed("typical_depth", to=0), "typical_depth must be above 0"),
        (changed("typical_depth", to=float("nan")), "typical_depth"),
        (changed("typical_depth", to=10**400), "typical_depth"),
        (changed("two\nlines", to=1), r"unknown key 'two\\nlines'"),
        (changed("surprise", to=1), "the document has an unknown key 'surprise'"),
        (changed("model", to="tiny"), "model must be an object"),
        (changed("model", "name", to=""), "model.name must be a non-empty string"),
        (changed("drafter", "surprise", to=1), "drafter has an unknown key 'surprise'"),
        (changed("checkpoints", to={}), "checkpoints must be a list"),
        (changed("loads", to=[]), "loads must ascend from above 0"),
        (changed("loads", to=[0.0, 1.0]), "loads must ascend from above 0"),
        (changed("loads", to=[8.0, 0.5]), "loads must ascend from above 0"),
        (changed("checkpoints", 1, "thresholds", to=[0.1]), "thresholds must be one per load, 2, at depth 3"),
        (changed("checkpoints", 1, "thresholds", to=[0.1, 1.5]), r"threshold must be in \[0, 1\], got 1.5 at depth 3"),
        (changed("checkpoints", 1, "thresholds", to=None), r"checkpoints\[1\].thresholds"),
        (changed("depths", 1, "threshold", to=-1), r"depths\[1\].threshold must be a number in \[0, 1\]"),
        (changed("depths", 1, "conditional", to=None), r"depths\[1\].conditional must be an object"),
        (changed("depths", 1, "conditional", "auc", to=2), r"depths\[1\].conditional.auc"),
        (changed("checkpoints", 1, "depth", to=1), "checkpoints: depth must increase"),
        (changed("checkpoints", 0, "n", to=True), r"checkpoints\[0\].n must be an integer"),
        (changed("checkpoints", 0, "auc", to=-0.1), r"checkpoints\[0\].auc"),
        (changed("depths", 2, "depth", to=2), "depths: depth must increase"),
        (changed("acceptance", 1, "depth", to=1), "acceptance: depth must increase"),
        (changed("acceptance", 0, "path_probability", to=[0.0, 0.4, 0.9]), "path_probability must ascend from 0 to 1"),
        (changed("acceptance", 0, "acceptance", to=[0.0, 0.3, 0.2]), "acceptance must rise"),
        (changed("acceptance", 0, "acceptance", to=[0.0, 0.3]), "one per point"),
        (changed("acceptance", 0, "acceptance", to=[0.0, None, 0.3]), r"acceptance\[0\].acceptance"),
        (changed("depths", 2, "acceptance", to="half"), r"depths\[2\].acceptance"),
        (changed("cost", "seconds", to=[[1.0, 2.0]]), "cost.seconds must hold one row per num_tokens"),
        (changed("cost", "seconds", 0, 0, to=0), "cost.seconds must be finite and above 0"),
        (changed("cost", "seconds", 0, 0, to="1"), "cost.seconds must hold finite numbers"),
        (changed("cost", "num_tokens", to=[1, 32, 8]), "cost.num_tokens must ascend"),
        (changed("cost", "num_tokens", to=[1, 8.5, 32]), "cost.num_tokens must be a list of integers"),
        (changed("cost", "cached_tokens", to=[]), "cost.cached_tokens must ascend"),
        (changed("cost", "drafting", to=0.1), "cost.drafting must be an object"),
        (
            changed("cost", "drafting", "num_requests", to=[0, 16]),
            "cost.drafting.num_requests must ascend from at least 1",
        ),
        (changed("cost", "drafting", "start_seconds", to=[0.1]), "drafting.start_seconds must hold one number per"),
        (
            changed("cost", "drafting", "level_seconds", to=[0.1]),
            "drafting.level_seconds must hold one number per num_n",
        ),
        (changed("cost", "drafting", "num_nodes", to=[1, 1, 2]), "cost.drafting.num_nodes must ascend from at least 1"),
        (
            changed("cost", "drafting", "level_seconds", to=[0.1, 0.1, -0.1]),
            "drafting.level_seconds must be finite and not neg",
        ),
        (changed("cost", "drafting", "pair_seconds", to=-1), "cost.drafting.pair_seconds must be a number in"),
        (changed("provenance", to=[]), "provenance must be an object"),
        ([VALID], "the document must be an object"),
    ],
)
def test_malformed_profiles_are_refused_by_name(data: object, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        Profile.from_json(data)


@pytest.mark.parametrize("key", VALID)
def test_every_key_is_required(key: str) -> None:
    with pytest.raises(ProfileError, match=f"{key} is missing"):
        Profile.from_json({name: value for name, value in VALID.items() if name != key})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data(), json_values)
def test_no_value_anywhere_gives_anything_but_a_profile_error(data: st.DataObject, value: object) -> None:
    path: list[Any] = []
    target: Any = VALID
    while isinstance(target, dict | list) and target and (not path or data.draw(st.booleans())):
        path.append(data.draw(st.sampled_from(list(target) if isinstance(target, dict) else range(len(target)))))
        target = target[path[-1]]
    message = ""
    try:
        Profile.from_json(changed(*path, to=value))
    except ProfileError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000], ids=["empty", "cut", "bytes", "deep"])
def test_files_that_are_not_json(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"profile\.json is not JSON"):
        load_profile(path)


def test_unreadable_files_and_bad_keys_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"cannot read profile .*absent\.json"):
        load_profile(tmp_path / "absent.json")
    with pytest.raises(ProfileError, match="cannot read profile"):
        load_profile(tmp_path)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(changed("target_depth", to=-1)))
    with pytest.raises(ProfileError, match=r"bad\.json: target_depth"):
        load_profile(path)


def test_a_profile_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot write profile"):
        Profile.from_json(VALID).save(tmp_path / "missing" / "profile.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(ProfileError, match="cannot write profile"):
        Profile.from_json(VALID).save(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_another_model_or_drafter_is_refused_naming_both() -> None:
    profile = Profile.from_json(VALID)
    check_profile(profile, Identity("a folder", "abc"), Identity("ngram", None))
    with pytest.raises(ProfileError, match=r"model tiny \(fingerprint abc\), not for large \(fingerprint def\)"):
        check_profile(profile, Identity("large", "def"), Identity("ngram", None))
    with pytest.raises(ProfileError, match=r"drafter ngram .*not for eagle3"):
        check_profile(profile, Identity("tiny", "abc"), Identity("eagle3", "e1"))
    head = Profile.from_json(changed("drafter", to={"name": "eagle3", "fingerprint": "e1"}))
    with pytest.raises(ProfileError, match=r"eagle3 \(fingerprint e1\), not for eagle3 \(fingerprint e2\)"):
        check_profile(head, Identity("tiny", "abc"), Identity("eagle3", "e2"))


FREE = DraftingCost.constant(0.0)
TABLE = CostTable((1, 8, 9, 32), (0, 100), ((1.0, 2.0), (1.0, 2.0), (4.0, 8.0), (8.6, 9.0)), FREE, {})


@pytest.mark.parametrize(
    ("num_tokens", "cached_tokens", "seconds"),
    [
        (1, 0, 1.0),
        (8, 0, 1.0),
        (9, 0, 4.0),  # a step whose sides were both measured stays one
        (10, 0, 4.2),  # elsewhere linear
        (8, 50, 1.5),
        (8, 200, 3.0),  # beyond what was measured as fast as all the way to there
        (63, 0, 16.2),
    ],
)
def test_cost_is_linear_between_what_was_measured(num_tokens: int, cached_tokens: float, seconds: float) -> None:
    assert TABLE.seconds_for(num_tokens, cached_tokens) == pytest.approx(seconds)


def test_cost_with_one_column_or_a_falling_last_segment() -> None:
    assert CostTable((1,), (64,), ((2.0,),), FREE, {}).seconds_for(1, 1000) == 2.0
    noisy = CostTable((1,), (10, 20), ((2.0, 1.0),), FREE, {})
    assert noisy.seconds_for(1, 0) == 2.0
    assert noisy.seconds_for(1, 1000) == 1.0


def test_drafting_costs_by_batch_and_by_the_nodes_of_each_level() -> None:
    drafting = DraftingCost((1, 2), (1.0, 1.0), (4, 8), (2.0, 6.0), 0.5)
    assert [drafting.start(size) for size in (1, 6, 99)] == [1.0, 1.0, 1.0]
    assert drafting.levels([1, 4, 6, 8, 12]).tolist() == [2.0, 2.0, 4.0, 6.0, 10.0]
    assert [drafting.seconds(6, frontiers, 2) for frontiers in ((), (6,), (6, 4, 12))] == [0.0, 2.0, 14.0]
    assert DraftingCost.constant(0.3).seconds(64, (64, 5), 9) == 0.6


def test_a_table_may_leave_its_overhead_out() -> None:
    assert "overhead" not in TABLE.to_json()
    whole = replace(TABLE, overhead=Overhead(0.25, 0.5))
    assert whole.overhead is not None and whole.overhead.seconds_for(2) == 1.25
    for table in (TABLE, whole):
        data = json.loads(json.dumps(table.to_json()))
        assert CostTable.from_json(Fields(data, "", KEYS, OPTIONAL_KEYS)) == table
    with pytest.raises(ProfileError, match=r"cost\.overhead must be finite"):
        Overhead(0.0, -1.0)
    with pytest.raises(ProfileError, match="unknown key 'overheads'"):
        Fields({**whole.to_json(), "overheads": {}}, "cost", KEYS, OPTIONAL_KEYS)
