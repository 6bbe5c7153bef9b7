"""What clients get back: plain JSON-able values, in the shapes of SGLang's native routes and OpenAI's model list."""

from dataclasses import asdict
from typing import Any

from echo_sched.types import FinishReason, StepRecord
from server.bridge import EngineBridge
from server.generation import Output
from server.logprobs import logprob_info
from server.reports import ServedModel
from server.version import package_version


def generated(output: Output, is_batch: bool) -> dict[str, Any]:
    """One prompt's result so far; its text is cumulative. Prompts of a list carry their index."""
    index = {"index": output.index} if is_batch else {}
    return {**index, "text": output.text, "output_ids": output.token_ids, "meta_info": _meta_info(output)}


def _meta_info(output: Output) -> dict[str, Any]:
    request, stats = output.request, output.stats
    lengths = stats.accepted_lengths
    logprobs = (
        {} if request.logprobs is None else logprob_info(request.logprobs, output.prompt_logprobs, output.logprobs)
    )
    return {
        "id": request.request_id,
        "finish_reason": None if output.finish is None else _finish_reason(output.finish),
        "prompt_tokens": len(request.prompt_ids),
        "completion_tokens": len(output.token_ids),
        "cached_tokens": 0,
        "sampling_seed": request.params.seed,
        "e2e_latency": output.updated_at - output.arrived_at,
        "spec_verify_ct": stats.num_verify_steps,
        "spec_accept_length": stats.acceptance_length,
        "spec_accept_rate": stats.num_accepted / stats.num_verified if stats.num_verified else 0.0,
        "spec_accept_token_num": stats.num_accepted,
        "spec_draft_token_num": stats.num_verified,
        "spec_truncated_ct": stats.num_truncated,
        "spec_widened_ct": stats.num_widened,
        # entry k: verify steps that accepted k nodes
        "spec_depth_histogram": [lengths[k] for k in range(max(lengths, default=-1) + 1)],
        **logprobs,
    }


def _finish_reason(finish: FinishReason) -> dict[str, Any]:
    reason: dict[str, Any] = {"type": finish.type}
    if finish.matched is not None:
        reason["matched"] = finish.matched
    if finish.message is not None:
        reason["message"] = finish.message
    return reason


def server_info(bridge: EngineBridge) -> dict[str, Any]:
    """Settings, facts of the engine, and its state now. Never the API key."""
    model = bridge.model
    return {
        "model_path": model.model_path,
        "version": package_version(),
        "settings": {**model.config.model_dump(), **bridge.settings.model_dump(exclude={"api_key"})},
        "engine": model.info,
        "profile": model.info.get("profile"),
        "scheduler": {
            "state": bridge.state,
            "stalled": bridge.stalled,
            "num_requests_running": bridge.heard.report.num_running,
            "num_requests_waiting": bridge.heard.report.num_waiting,
            **scheduler(bridge),
        },
        "last_step": None if bridge.heard.last_record is None else _step(bridge.heard.last_record),
        "internal_states": [{"avg_spec_accept_length": bridge.heard.acceptance_length}],
    }


def scheduler(bridge: EngineBridge) -> dict[str, Any]:
    """The scheduler's settings, what its gate is worth by now, and counts since the start. There must be a model."""
    scheduling, record = bridge.heard.scheduling, bridge.heard.last_record
    assert scheduling is not None, "the engine reports before it is ready"
    state = scheduling.state._asdict()
    gate = [depth._asdict() for depth in state.pop("drift")]
    return {
        "settings": scheduling.settings,
        "limits": {"k_max": scheduling.k_max_limit},
        **state,
        "explored_share": state["num_explored"] / max(state["num_steps"], 1),
        "gate": gate,
        "k_max": None if record is None else record.k_max,  # of the last step
        "cost_model_error_ratio": bridge.metrics.cost_model_error,
    }


def _step(record: StepRecord) -> dict[str, Any]:
    """Without the raw data, which only a recording loop has."""
    step = asdict(record)
    for name in ("gate_readings", "node_readings", "offers"):
        del step[name]
    return step


def model_info(model: ServedModel) -> dict[str, Any]:
    return {
        "model_path": model.model_path,
        "tokenizer_path": model.model_path,
        "is_generation": True,
        "vocab_size": model.vocab_size,
        "max_model_len": model.max_model_len,
    }


def model_list(model: ServedModel, created: int) -> dict[str, Any]:
    entry = {
        "id": model.config.model,
        "object": "model",
        "created": created,
        "owned_by": "echo-sched",
        "root": model.model_path,
        "max_model_len": model.max_model_len,
    }
    return {"object": "list", "data": [entry]}
