"""Builds a decode loop from a config: resolves the model, opens the target, picks drafter, profile and policy.

It makes what decode.py runs, and decides nothing per step.
"""

from dataclasses import replace

from echo_sched.arms import LIVE_SETTINGS
from echo_sched.config import AUTO_DRAFTER, EngineConfig
from echo_sched.engine.accept import Sampler
from echo_sched.engine.draft import Drafter, Part, check_drafter, make_drafter
from echo_sched.engine.forward import Target
from echo_sched.engine.memory import resolve_device
from echo_sched.engine.opening import beside, open_target
from echo_sched.engine.sampling import sample
from echo_sched.errors import ConfigError, ProfileError
from echo_sched.fetch import resolve_model
from echo_sched.heads import shipped_head, shipped_profile
from echo_sched.loop.decode import DecodeLoop
from echo_sched.loop.pricing import cost_here
from echo_sched.loop.self_check import self_check
from echo_sched.scheduler.live_cost import LiveCost
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.profile import Identity, Profile, check_profile, load_profile
from echo_sched.scheduler.starting_values import built_in_profile

MIN_SLOTS = 2  # the probe packs two sequences


def assemble(config: EngineConfig, *, recording: bool = False) -> DecodeLoop:
    """Load and check everything. What can fail cheaply fails before weights are read.

    Raises ConfigError, ModelError or ProfileError.
    """
    config = resolve_drafter(config)
    profile = _read_profile(config)
    _parts(config)
    make_policy(PolicySettings.of(config), profile)
    target = open_target(
        resolve_model(config.model),
        dtype=config.dtype,
        numerics=config.numerics,
        device=resolve_device(config.device),
        num_slots=max(config.max_batch_size, MIN_SLOTS),
        max_model_len=config.max_model_len,
        tail_len=config.k_max,
        kv_limit_gib=config.kv_memory,
    )
    drafter = _drafter(config, target)
    if config.profile is None and not _fits(profile, config, target, drafter):
        profile = built_in_profile(config.drafter)
    loop = _loop(config, target, drafter, profile, recording=recording)
    if config.k_max == 0 or config.policy == "off":
        return loop
    if drafter.aux_layers:
        self_check(loop)
    if config.price == "off":
        return loop
    priced = replace(profile, cost=cost_here(loop, profile.cost))
    return _loop(config, target, drafter, priced, recording=recording)


def reassemble(loop: DecodeLoop, config: EngineConfig) -> DecodeLoop:
    """A loop with other scheduling settings on the same loaded target, with the same drafter: both must be idle.

    Raises ConfigError, ProfileError.
    """
    config = resolve_drafter(config)
    profile = _changed_profile(loop, config)
    return _changed(loop, config, loop.target, loop.drafter, profile)


def reassemble_beside(loop: DecodeLoop, config: EngineConfig) -> DecodeLoop:
    """A loop with other scheduling settings on the same weights, with KV and a drafter of its own.

    Raises ConfigError, also where memory has no room for it, ModelError, ProfileError.
    """
    config = resolve_drafter(config)
    profile = _changed_profile(loop, config)
    target = beside(loop.target, num_slots=max(config.max_batch_size, MIN_SLOTS))
    return _changed(loop, config, target, _drafter(config, target), profile)


def _changed_profile(loop: DecodeLoop, config: EngineConfig) -> Profile:
    """The profile of a loop with the settings `config`, which may differ from `loop`'s in scheduling alone."""
    scheduling = {*PolicySettings.__dataclass_fields__, *LIVE_SETTINGS, "profile", "max_batch_size", "chunk_tokens"}
    changed = {name for name, value in config if value != getattr(loop.config, name)} - scheduling
    if changed:
        raise ConfigError(f"a loaded target cannot change {', '.join(sorted(changed))}")
    if config.k_max > loop.config.k_max or config.max_batch_size > loop.config.max_batch_size:
        raise ConfigError("a loaded target cannot raise k_max or max_batch_size")
    if config.profile == loop.config.profile:
        return loop.profile
    return replace(_read_profile(config), cost=loop.profile.cost)  # the machine is still the same


def _changed(loop: DecodeLoop, config: EngineConfig, target: Target, drafter: Drafter, profile: Profile) -> DecodeLoop:
    """The machine is the same, and so is what was learned of it."""
    return _loop(config, target, drafter, profile, learned=loop.learned, recording=loop.recording, sampler=loop.sampler)


def resolve_drafter(config: EngineConfig) -> EngineConfig:
    """The same settings with `auto` replaced by what it stands for: a head that is named or ships, else ngram."""
    if config.drafter != AUTO_DRAFTER:
        return config
    if config.draft_model is not None:
        return config.model_copy(update={"drafter": "eagle3"})
    head = shipped_head(config.model)
    if head is None:
        return config.model_copy(update={"drafter": "ngram"})
    return config.model_copy(update={"drafter": "eagle3", "draft_model": head.name})


def _parts(config: EngineConfig) -> list[Part]:
    return check_drafter(config.drafter, config.draft_model, config.aux_layers, resolve_model)


def _drafter(config: EngineConfig, target: Target) -> Drafter:
    return make_drafter(_parts(config), target, aux_layers=config.aux_layers, coupled=config.coupling == "on")


def _loop(
    config: EngineConfig,
    target: Target,
    drafter: Drafter,
    profile: Profile,
    *,
    learned: LiveCost | None = None,
    recording: bool,
    sampler: Sampler = sample,
) -> DecodeLoop:
    if learned is None and profile.cost is not None:
        learned = LiveCost(profile.cost)
    policy = make_policy(PolicySettings.of(config), profile, learned)
    loop = DecodeLoop(config, target, drafter, policy, profile, learned=learned, recording=recording, sampler=sampler)
    check_profile(profile, loop.model_identity, loop.drafter_identity)
    return loop


def _read_profile(config: EngineConfig) -> Profile:
    """The profile that is named, else the one that ships with the head, else the drafter's starting values."""
    if config.profile is not None:
        return load_profile(config.profile)
    shipped = None if config.draft_model is None else shipped_profile(config.draft_model)
    return built_in_profile(config.drafter) if shipped is None else load_profile(shipped)


def _fits(profile: Profile, config: EngineConfig, target: Target, drafter: Drafter) -> bool:
    try:
        check_profile(
            profile, Identity(config.model, target.facts.fingerprint), Identity(drafter.name, drafter.fingerprint)
        )
    except ProfileError:
        return False
    return True
