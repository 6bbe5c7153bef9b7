"""Settings of an engine: frozen, complete, and the one source of its command-line flags (see flags.py).

Unknown keys are errors. Nobody writes into a config later; `resolve()` style changes return a new value.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

DEFAULT_MODEL = "smollm2-135m-instruct"
AUTO_DRAFTER = "auto"  # a drafter to be chosen by what ships for the model (see loop/assembly.py)
DRAFTERS = ("ngram", "eagle3", "lm")

PolicyName = Literal["off", "static", "table", "dynamic", "echo", "goodput"]
GateName = Literal["sparse", "dense", "none", "random"]
DtypeName = Literal["auto", "float64", "float32", "bfloat16"]
NumericsName = Literal["fast", "exact"]


class EngineConfig(BaseModel):
    """Everything that decides what an engine computes. Field descriptions are the flags' help texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str = Field(DEFAULT_MODEL, description="alias, local folder, GGUF file or hub id of the target model")
    drafter: str = Field(
        AUTO_DRAFTER,
        description="what proposes draft tokens: ngram, eagle3, lm (a smaller model with the same tokenizer), several "
        "joined with + (eagle3+ngram), or auto: the EAGLE-3 head that --draft-model names or that ships for the model, "
        "else ngram",
    )
    draft_model: str | None = Field(
        None,
        description="eagle3: folder of its head, or the alias of a model that a head ships for; lm: alias, local "
        "folder, GGUF file or hub id of its model; for several of them as many, in order, joined with commas",
    )
    draft_aux_layers: str | None = Field(
        None,
        pattern=r"^\d+(,\d+)*$",
        description="eagle3: hidden states of the target that the head reads, as in 2,15,27 (0: embeddings, i: output "
        "of layer i - 1; default: what the head's config says)",
    )
    coupling: Literal["on", "off"] = Field(
        "on",
        description="on: eagle3 and lm rank drafts of sampled requests by the random numbers that will choose the "
        "token too; off: by the drafter's probabilities alone",
    )
    policy: PolicyName = Field("echo", description="scheduling rule that shares K_max among requests")
    profile: str | None = Field(
        None,
        description="profile file written by `echo-sched calibrate` (default: the one that ships with the head, else "
        "built-in values)",
    )
    k_max: int = Field(32, ge=0, description="most draft tokens the whole batch may verify in one step")
    k_max_rule: Literal["fixed", "auto"] = Field(
        "auto", description="auto: choose K_max from what drafts were worth and cost, at most --k-max; needs --price on"
    )
    price: Literal["on", "off"] = Field(
        "on", description="off: buy whatever K_max allows, even nodes and levels that cost more than they can bring"
    )
    live_costs: Literal["on", "off"] = Field(
        "on",
        description="correct the measured costs by what steps take (on a CPU: elsewhere a forward's end is not timed); "
        "off: steps repeat exactly, and so does what is drafted",
    )
    live_acceptance: Literal["on", "off"] = Field(
        "on",
        description="correct the profile's chances of acceptance by what is accepted, for each kind of temperature",
    )
    max_depth: int = Field(8, ge=1, le=64, description="deepest draft node (D_max)")
    branching: int = Field(4, ge=1, le=64, description="children the drafter proposes per node")
    gate: GateName = Field("sparse", description="echo: depths whose confidence is read (ablation)")
    gate_scope: Literal["request", "branch"] = Field(
        "request", description="echo: what a closed gate truncates (ablation)"
    )
    thresholds: Literal["per-depth", "single"] = Field(
        "per-depth", description="echo: one threshold per checkpoint, or one for all (ablation)"
    )
    transfer: Literal["on", "off"] = Field(
        "on", description="echo: budget left by truncated requests goes to others (ablation)"
    )
    widen: Literal["on", "off"] = Field("on", description="echo: spend what is left on siblings (ablation)")
    widen_scope: Literal["all", "truncation"] = Field(
        "all", description="echo: widen below every granted node, or at truncation points only"
    )
    explore: float = Field(
        0.01,
        ge=0,
        le=1,
        description="echo: share of steps that draft without a gate, for requests drawn by lot, to see whether the "
        "gate is still right",
    )
    adapt: Literal["on", "off"] = Field(
        "off", description="echo: refit thresholds, now and then, from what explored steps show"
    )
    shapes: str = Field(
        "1=1.1.1.1.1/4=1.1.1/8=1.1/32=",
        pattern=r"^\d+=[\d.]*(/\d+=[\d.]*)*$",
        description="table: children per node at each depth, by smallest batch size; nothing behind = drafts nothing",
    )
    node_floor: int = Field(
        0,
        ge=0,
        description="echo, goodput: draft nodes every decoding request gets of its best offers before others get more, "
        "whatever gate and price say, but in explored steps; an even share of K_max at most",
    )
    max_step_stretch: float | None = Field(
        None,
        ge=0,
        description="bound on what drafts may cost those who get none: drafting and verifying take at most 1 + X times "
        "what plain decoding's step is expected to; needs --price on (default: no bound)",
    )
    dtype: DtypeName = Field("auto", description="precision of weights and KV (auto: the checkpoint's own)")
    numerics: NumericsName = Field(
        "fast", description="exact: a row's result never depends on what is batched with it, bit for bit"
    )
    device: str = Field("auto", description="torch device (auto: an accelerator if torch can use one, else cpu)")
    max_batch_size: int = Field(32, ge=1, le=1024, description="most requests running at once (KV slots)")
    max_model_len: int | None = Field(
        None,
        ge=8,
        description="most tokens of one request, prompt included (default: 2048 or what the model can)",
    )
    kv_memory: float | None = Field(
        None, gt=0, description="GiB for the KV cache (default: at most half of the free memory)"
    )
    chunk_tokens: int = Field(
        128, ge=1, description="prompt tokens per step; up to 4 times as many, the more requests are at their prompts"
    )
    seed: int = Field(0, ge=0, description="seed of everything random outside sampling (explored steps, random gate)")

    @field_validator("drafter")
    @classmethod
    def _names_drafters(cls, value: str) -> str:
        parts = value.split("+")
        if value != AUTO_DRAFTER and not set(parts) <= set(DRAFTERS):
            raise ValueError(
                f"should be {', '.join((AUTO_DRAFTER, *DRAFTERS))} or several joined with + as in eagle3+ngram"
            )
        if parts.count("ngram") > 1:
            raise ValueError("should name ngram once at most")
        return value

    @field_validator("draft_model")
    @classmethod
    def _names_weights(cls, value: str | None) -> str | None:
        if value is not None and not all(value.split(",")):
            raise ValueError("should name a head or a model before and after every comma")
        return value

    @model_validator(mode="after")
    def _adapts_depth_by_depth(self) -> Self:
        if self.adapt == "on" and self.thresholds == "single":
            raise ValueError("--adapt on refits each depth's threshold, which --thresholds single forbids")
        return self

    @model_validator(mode="after")
    def _bounds_what_it_reckons(self) -> Self:
        if self.max_step_stretch is not None and self.price == "off":
            raise ValueError("--max-step-stretch needs --price on: without it no step's time is reckoned")
        return self

    @property
    def aux_layers(self) -> tuple[int, ...] | None:
        """`draft_aux_layers` as numbers."""
        return None if self.draft_aux_layers is None else tuple(map(int, self.draft_aux_layers.split(",")))
