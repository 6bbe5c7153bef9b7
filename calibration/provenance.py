"""Where a profile came from: the data by hash, what was left out and why, every setting, and the run itself.

Adds calibration's own facts to those every result file of the product carries (echo_sched/provenance.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibration.collect import Sample, Trace
from echo_sched import provenance
from echo_sched.config import EngineConfig
from echo_sched.engine.measure import CostCurve
from echo_sched.prompts import PromptFile
from echo_sched.scheduler import depth_fit, fit

CHECKPOINT_RULES = {
    "auc": "lower end of the AUC's 95 % interval (bootstrap over prompts) at or above auc_cut",
    "drop": "lower end of the 95 % interval (bootstrap over prompts) of the fall in conditional acceptance at or above "
    "drop_cut",
}
THRESHOLD_RULES = {
    "youden": "Youden's J on one half of the prompts, above 0 on the other half",
    "throughput": "checkpoints as with Youden's J; per load what makes replayed steps of that half fastest",
}


def profile_provenance(
    argv: Sequence[str],
    *,
    data_path: str,
    prompts: PromptFile,
    sample: Sample,
    settings: dict[str, Any],
    config: EngineConfig,
    trace: Trace,
    curve: CostCurve | None,
    weights: str,
) -> dict[str, Any]:
    """JSON-able: enough to run the same calibration again and to see what the numbers rest on.

    weights: what was loaded, as the engine says it. tree_width: most nodes per depth of the trees that were grown.
    """
    return {
        **provenance.provenance(argv),
        "data": {
            "file": Path(data_path).name,
            "sha256": prompts.sha256,
            "num_prompts": len(sample.requests),
            "num_prompts_in_file": len(prompts.prompts),
            "num_skipped": sample.num_skipped,
            "skip_reasons": sample.skip_reasons,
            "num_bad_rows": prompts.num_bad_rows,
            "bad_row_reasons": prompts.bad_row_reasons,
        },
        "settings": settings,
        "rules": {
            "checkpoint": CHECKPOINT_RULES[settings["checkpoint_rule"]],
            "threshold": THRESHOLD_RULES[settings["threshold_rule"]],
            "min_readings": depth_fit.MIN_READINGS,
            "min_prompts": depth_fit.MIN_PROMPTS,
            "num_resamples": fit.NUM_RESAMPLES,
            "target_reach": fit.TARGET_REACH,
        },
        "engine": config.model_dump(mode="json"),
        "weights": weights,
        "tree_width": config.branching,  # calibration.run.ungated chooses K_max so that it never limits the width
        "run": {
            "num_steps": trace.num_steps,
            "num_output_tokens": trace.num_output_tokens,
            "num_readings": len(trace.readings),
        },
        "cost_spread_seconds": None if curve is None else [list(row) for row in curve.spread],
    }
