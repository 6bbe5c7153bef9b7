"""How the client wants its prompts served beside others'. Knows nothing of models."""

import math

from echo_sched.types import ServiceParams
from server.fields import each
from server.schemas import GenerateBody


def service_params(body: GenerateBody, num_prompts: int, is_list: bool) -> list[ServiceParams]:
    """One for each prompt. Raises RequestError naming the field.

    A priority of 0 is what clients of other servers send for none.
    """
    priorities = each("priority", body.priority, 0.0, num_prompts, is_list)
    targets = each("tpot_slo_ms", body.tpot_slo_ms, math.inf, num_prompts, is_list)
    return [
        ServiceParams(priority or ServiceParams.priority, None if target == math.inf else target)
        for priority, target in zip(priorities, targets, strict=True)
    ]
