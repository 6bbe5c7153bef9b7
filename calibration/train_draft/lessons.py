"""What the head is taught at every unrolled step, and how well it has learnt.

The lesson is the target's own distribution over the draft vocabulary (renormalised), as soft cross-entropy. Starts
whose true next token the head cannot draft are left out of the loss, and are misses in the accuracy.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from calibration.train_draft.batches import Batch
from echo_sched.engine.draft.eagle3.head import Eagle3Head

TOP = 8  # candidates that count for the second accuracy of the first step
STEP_WEIGHT = 0.8  # step s of the loss counts 0.8^s: a draft seldom gets that far


class Lessons(NamedTuple):
    """What each draft start of a batch should say first. Start m's lesson at step s is start m + s's first one."""

    probabilities: Tensor  # [M, draft_vocab]: the target's
    label: Tensor  # [M]: draft token of the text's own next token, -1 where the head has none


class Score(NamedTuple):
    """Held-out results. Accuracy is agreement with the text's own next token, all of them counted."""

    loss: float  # weighted like the training loss
    accuracy: list[float]  # per unrolled step
    accuracy_top: float  # true token within the TOP best at step 1
    num_tokens: int  # at step 1


def step_losses(head: Eagle3Head, outputs: list[Tensor], lessons: Lessons, batch: Batch) -> Tensor:
    """Mean soft cross-entropy of every step: [steps]."""
    steps = _step_logits(head, outputs, lessons, batch)
    sums = [_summed_loss(logits, lesson) for logits, lesson in steps]
    return torch.stack([total / count.clamp(min=1) for total, count in sums])


def weigh(losses: Tensor) -> Tensor:
    """One number to minimise from the losses of all steps [steps]."""
    weights = STEP_WEIGHT ** torch.arange(len(losses), device=losses.device, dtype=losses.dtype)
    return (weights * losses).sum() / weights.sum()


class Scoreboard:
    """Adds up held-out results batch by batch."""

    def __init__(self, num_steps: int) -> None:
        self._sums = torch.zeros(5, num_steps, dtype=torch.float64)  # loss, its tokens, hits, hits in TOP, tokens

    @torch.no_grad()
    def add(self, head: Eagle3Head, outputs: list[Tensor], lessons: Lessons, batch: Batch) -> None:
        for step, (logits, lesson) in enumerate(_step_logits(head, outputs, lessons, batch)):
            hits = logits.topk(min(TOP, logits.shape[-1])).indices == lesson.label[:, None]
            counts = (*_summed_loss(logits, lesson), hits[:, 0].sum(), hits.sum(), torch.tensor(len(hits)))
            self._sums[:, step] += torch.stack([count.double().cpu() for count in counts])

    def score(self) -> Score:
        loss, num_taught, hits, top_hits, num_tokens = self._sums
        accuracy, accuracy_top = hits / num_tokens.clamp(min=1), top_hits / num_tokens.clamp(min=1)
        return Score(
            loss=float(weigh(loss / num_taught.clamp(min=1))),
            accuracy=accuracy.tolist(),
            accuracy_top=float(accuracy_top[0]),
            num_tokens=int(num_tokens[0]),
        )


def _step_logits(
    head: Eagle3Head, outputs: list[Tensor], lessons: Lessons, batch: Batch
) -> Iterator[tuple[Tensor, Lessons]]:
    """Logits and lessons of every step, for the starts that have tokens at that step."""
    for step, output in enumerate(outputs):
        start = (batch.remaining >= step).nonzero()[:, 0]
        yield (
            head.logits(output[start]).to(lessons.probabilities.dtype),
            Lessons(*(field[start + step] for field in lessons)),
        )


def _summed_loss(logits: Tensor, lesson: Lessons) -> tuple[Tensor, Tensor]:
    """Sum of the soft cross-entropy over rows that count, and how many they are."""
    counts = lesson.label >= 0
    entropy = logits.logsumexp(-1) - torch.linalg.vecdot(lesson.probabilities, logits)
    return (entropy * counts).sum(), counts.sum()
