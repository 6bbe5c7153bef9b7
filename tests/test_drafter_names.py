"""From `--drafter` and `--draft-model` to a drafter: heads that ship, `auto`, joined names, and a line per mistake."""

from dataclasses import replace
from pathlib import Path

import pytest

from calibration.flags import parse
from calibration.run import ungated
from echo_sched import heads
from echo_sched.config import DEFAULT_MODEL, DRAFTERS, EngineConfig
from echo_sched.engine.draft import KNOWN, check_drafter
from echo_sched.errors import ConfigError, ModelError
from echo_sched.fetch import PACKAGED_MODELS
from echo_sched.heads import shipped_head
from echo_sched.loop import DecodeLoop
from echo_sched.loop.assembly import resolve_drafter
from echo_sched.scheduler.profile import Identity
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES, EAGLE3_TARGET_DEPTH, built_in_profile
from tests.tiny_heads import LAYER, ORIGINAL, head_tensors, write_head

SMALL = {"max_model_len": 96, "max_batch_size": 2, "k_max": 8}
AUTO = EngineConfig(**SMALL)


def write_tiny_head(folder: Path, seed: int = 0) -> Path:
    return write_head(folder, ORIGINAL, head_tensors(ORIGINAL, seed=seed))


@pytest.fixture
def shipped(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default alias stands for the tiny model, and a head for it ships."""
    monkeypatch.setattr(heads, "FOLDER", tmp_path / "heads")
    monkeypatch.setattr("echo_sched.loop.assembly.resolve_model", lambda _: str(model_folder))
    return write_tiny_head(tmp_path / "heads" / DEFAULT_MODEL)


@pytest.fixture
def none_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "FOLDER", tmp_path)


def resolved(**settings: str) -> tuple[str, str | None]:
    config = resolve_drafter(EngineConfig(**settings))
    return config.drafter, config.draft_model


# ---- heads that ship ----


def test_a_shipped_head_is_known_by_its_alias_and_by_nothing_else(shipped: Path) -> None:
    (shipped.parent / "unfinished").mkdir()
    assert shipped_head(DEFAULT_MODEL) == shipped_head(DEFAULT_MODEL.upper()) == shipped
    for name in ("", ".", "..", "unfinished", str(shipped), f"./{DEFAULT_MODEL}", f"HuggingFaceTB/{DEFAULT_MODEL}"):
        assert shipped_head(name) is None, name


def test_what_ships_is_whole_and_named_after_a_model_that_we_fetch() -> None:
    for folder in (path for path in heads.FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"):
        assert folder.name in PACKAGED_MODELS and shipped_head(folder.name) == folder
        files = {path.name for path in folder.iterdir()}
        assert files >= {"config.json", "model.safetensors", "README.md", "curve.svg"}


def test_auto_is_the_head_that_ships_for_the_model(shipped: Path) -> None:
    assert resolved() == resolved(model=DEFAULT_MODEL.upper()) == ("eagle3", DEFAULT_MODEL)
    assert resolved(model=f"./{DEFAULT_MODEL}") == resolved(model="owner/name") == ("ngram", None)


def test_auto_is_ngram_where_no_head_ships(none_shipped: None) -> None:
    assert resolved() == ("ngram", None)


def test_what_is_named_is_taken(shipped: Path) -> None:
    assert resolved(draft_model="folder") == ("eagle3", "folder")
    for drafter in ("ngram", "eagle3", "lm", "eagle3+ngram", "eagle3+lm"):
        assert resolved(drafter=drafter) == (drafter, None)


def test_auto_loads_the_shipped_head_and_everything_names_it(shipped: Path) -> None:
    loop = DecodeLoop.from_config(AUTO)
    assert (loop.drafter.name, loop.drafter_identity.fingerprint is None) == ("eagle3", False)
    assert (loop.config.drafter, loop.config.draft_model) == ("eagle3", DEFAULT_MODEL)
    assert (loop.info()["drafter"], loop.info()["draft_model"]) == ("eagle3", DEFAULT_MODEL)
    plain = loop.with_policy(AUTO.model_copy(update={"policy": "off"}))  # as a comparison's arms do
    assert plain.drafter is loop.drafter and plain.config.drafter == "eagle3"


def test_a_model_that_no_head_ships_for_is_served_with_ngram(shipped: Path, model_folder: Path) -> None:
    loop = DecodeLoop.from_config(AUTO.model_copy(update={"model": str(model_folder)}))
    assert loop.drafter.name == loop.config.drafter == loop.info()["drafter"] == "ngram"


def test_a_calibration_sees_the_real_drafter(shipped: Path, tmp_path: Path) -> None:
    config = ungated(parse(["data", "--out", str(tmp_path / "profile.json")]))
    assert (config.drafter, config.draft_model) == ("eagle3", DEFAULT_MODEL)


def test_the_profile_that_ships_with_a_head_is_used_where_it_fits(shipped: Path) -> None:
    first = DecodeLoop.from_config(AUTO)
    assert (first.profile.target_depth, first.info()["profile"]) == (EAGLE3_TARGET_DEPTH, "built in")
    fitting = replace(
        BUILT_IN_PROFILES["eagle3"],
        target_depth=EAGLE3_TARGET_DEPTH + 1,
        model=first.model_identity,
        drafter=first.drafter_identity,
        provenance={},
    )
    fitting.save(shipped / "profile.json")
    loop = DecodeLoop.from_config(AUTO)
    assert (loop.profile.target_depth, loop.info()["profile"]) == (EAGLE3_TARGET_DEPTH + 1, "shipped with the head")
    assert loop.with_policy(AUTO).profile == loop.profile
    replace(fitting, model=Identity("another fine-tune", "123")).save(shipped / "profile.json")
    assert DecodeLoop.from_config(AUTO).profile.target_depth == EAGLE3_TARGET_DEPTH


def test_a_shipped_head_that_does_not_fit_says_how_to_do_without(shipped: Path) -> None:
    wide = ORIGINAL | LAYER | {"hidden_size": 96, "target_hidden_size": 96}
    write_head(shipped, wide, head_tensors(ORIGINAL))
    with pytest.raises(ModelError, match=f"96.*without the head that ships for {DEFAULT_MODEL}, pass --drafter ngram$"):
        DecodeLoop.from_config(AUTO)
    with pytest.raises(ModelError, match=r"96; this one has 48$"):  # one's own folder: no such advice
        DecodeLoop.from_config(AUTO.model_copy(update={"draft_model": str(shipped)}))


# ---- joined names ----


def test_a_merge_is_opened_by_name_one_head_for_each_eagle3_in_order(shipped: Path, tmp_path: Path) -> None:
    other = write_tiny_head(tmp_path / "other", seed=1)
    two = AUTO.model_copy(update={"drafter": "eagle3+ngram+eagle3", "draft_model": f"{DEFAULT_MODEL},{other}"})
    loop = DecodeLoop.from_config(two)
    assert loop.drafter.name == loop.profile.drafter.name == loop.info()["drafter"] == "eagle3+ngram+eagle3"
    prints = [
        DecodeLoop.from_config(AUTO.model_copy(update={"draft_model": str(folder)})).drafter_identity.fingerprint
        for folder in (shipped, other)
    ]
    assert loop.drafter_identity.fingerprint == "+".join(map(str, prints)) and prints[0] != prints[1]


def test_a_merge_starts_with_the_profile_of_its_first_part() -> None:
    for first, second in (("ngram", "eagle3"), ("eagle3", "lm"), ("lm", "ngram")):
        profile = built_in_profile(f"{first}+{second}")
        assert profile.drafter.name == f"{first}+{second}"
        assert profile.checkpoints == BUILT_IN_PROFILES[first].checkpoints != BUILT_IN_PROFILES[second].checkpoints
        assert built_in_profile(first) == BUILT_IN_PROFILES[first]


def test_the_settings_know_every_drafter() -> None:
    assert set(DRAFTERS) == set(KNOWN)


@pytest.mark.parametrize(
    ("name", "model", "layers", "complaint"),
    [
        ("eagle3+oracle", "a", None, "--drafter eagle3+oracle: unknown drafter 'oracle'; known: ngram, eagle3"),
        ("eagle3+", "a", None, "--drafter eagle3+: unknown drafter ''"),
        ("ngram", "a", None, "the ngram drafter has no weights; leave --draft-model"),
        ("eagle3+ngram", None, None, "--drafter eagle3+ngram needs --draft-model, the folder of a head"),
        ("lm", None, None, "--drafter lm needs --draft-model, a smaller model with the target's tokenizer$"),
        (
            "eagle3+eagle3",
            None,
            None,
            "needs --draft-model, 2 names joined with commas, in order: the folder of a head",
        ),
        ("eagle3+eagle3", "a", None, "--drafter eagle3+eagle3 needs in --draft-model 2 names .* each eagle3; 1 named"),
        ("lm+eagle3", "a", None, "2 names .* a head made .* each eagle3 and a smaller model .* each lm; 1 named$"),
        ("eagle3+ngram", "a,b", None, "--drafter eagle3+ngram needs in --draft-model the folder of a head .*2 named$"),
        ("eagle3+eagle3", "a,a", None, "--draft-model names the same weights twice, .*: a,a$"),
        ("lm+ngram+lm", "a,./a", None, "--draft-model names the same weights twice"),
        ("lm", "a", (1, 2), "--draft-aux-layers is for one eagle3; --drafter lm has none$"),
        ("eagle3+eagle3", "a,b", (1, 2), "--draft-aux-layers is for one eagle3; --drafter eagle3+eagle3 has 2"),
    ],
)
def test_every_mistake_is_a_line_that_names_the_flag(
    name: str, model: str | None, layers: tuple[int, ...] | None, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("+", r"\+")) as error:
        check_drafter(name, model, layers, resolve=lambda word: str(Path(word)))
    assert "\n" not in str(error.value)


def test_a_head_that_is_not_there_is_told_before_the_target_is_loaded(shipped: Path, tmp_path: Path) -> None:
    check_drafter("eagle3+ngram", DEFAULT_MODEL, (0, 1, 2))
    with pytest.raises(ModelError, match=r"missing/config\.json"):
        check_drafter("eagle3+eagle3", f"{DEFAULT_MODEL},{tmp_path / 'missing'}", None)
    with pytest.raises(ConfigError, match="names the same weights twice"):
        check_drafter("eagle3+eagle3", f"{DEFAULT_MODEL},{shipped}", None)
