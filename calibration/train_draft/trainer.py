"""Passes over the training conversations until the budget is spent or the head stops improving.

Order of batches, schedule and stop rule (schedule.py) depend on (seed, pass, batch) and on what was seen, so a resumed
run repeats an uninterrupted one. While it learns, the head reads features divided by their usual size, channel by
channel: a target's channels differ by orders of magnitude, and the optimizer's steps do not. `trained_head` puts that
into the fusion's weights. Knows no files but the state's.
"""

import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibration.train_draft.batches import Batch, deal, make_batch
from calibration.train_draft.data import Conversation
from calibration.train_draft.lessons import Lessons, Score, Scoreboard, step_losses, weigh
from calibration.train_draft.schedule import Recipe, has_stalled, rate
from calibration.train_draft.state import TrainingState, load_state, save_state
from calibration.train_draft.target import Features, TeachingTarget
from calibration.train_draft.unroll import unroll
from echo_sched.engine.draft.eagle3.head import Eagle3Head
from echo_sched.engine.kernels import computes_bfloat16
from echo_sched.notice import say

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0
LOG_EVERY = 10  # steps
SCALE_ROWS = 8192  # rows from which the usual size of a channel is read
SMALLEST_SCALE = 1e-3  # of the middle channel's


class Trainer:
    """Trains `head` in place. `after_score(trainer, is_best)` follows every held-out evaluation."""

    def __init__(
        self,
        recipe: Recipe,
        head: Eagle3Head,
        target: TeachingTarget,
        features: Callable[[Batch], Features],
        training: Sequence[Conversation],
        held_out: Sequence[Conversation],
        *,
        draft_ids: Tensor,
        identity: dict[str, Any],
        state_path: Path,
        after_score: Callable[["Trainer", bool], None],
    ) -> None:
        """draft_ids [vocab]: -1 for undraftable. `features` numbers held-out conversations behind the training ones.

        `identity` is what a state must share to be continued.
        """
        self.state = TrainingState()
        self._recipe, self._head, self._target, self._features = recipe, head, target, features
        self._conversations, self._num_training = [*training, *held_out], len(training)
        self._draft_ids, self._device = draft_ids.to(target.device), target.device
        self._identity, self._state_path, self._after_score = identity, state_path, after_score
        self._optimizer = torch.optim.AdamW(
            head.parameters(), lr=recipe.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
        )
        low = recipe.compute_dtype == "bfloat16" or (recipe.compute_dtype == "auto" and computes_bfloat16(self._device))
        self._products = partial(torch.autocast, self._device.type, torch.bfloat16, enabled=low)
        self._held_out: list[tuple[Batch, Features]] | None = None
        self._scale: Tensor | None = None
        self._unlogged: list[Tensor] = []

    def resume(self) -> None:
        """Continue from the saved state. Raises DataError."""
        self.state, tensors = load_state(self._state_path, self._identity)
        self._head.load_state_dict(tensors["head"])
        self._optimizer.load_state_dict(tensors["optimizer"])
        self._scale = tensors["scale"].to(self._device)

    def trained_head(self) -> Eagle3Head:
        """A copy of the head that reads the target's features as they are."""
        head = copy.deepcopy(self._head)
        assert head.fc is not None and self._scale is not None
        head.fc.weight.data /= self._scale
        return head

    def run(self, report: Callable[[int, int], None]) -> None:
        """Train to the end. `report(per mille of the budget, 1000)` follows each step."""
        state, lengths = self.state, [c.length for c in self._conversations[: self._num_training]]
        self._started = time.perf_counter() - state.seconds
        if not state.curve:
            self._evaluate(pass_end=False)
            self._save()
        while state.epoch < self._recipe.epochs and self._spent < 1.0 and not has_stalled(state):
            batches = deal(lengths, self._recipe.batch_tokens, f"{self._recipe.seed}/{state.epoch}")
            for members in batches[state.batch :]:
                self._set_rate(len(batches))
                self._learn(make_batch(self._conversations, members).to(self._device))
                report(min(1000, round(1000 * self._progress(len(batches)))), 1000)
                if self._spent >= 1.0:
                    break
                if self._recipe.eval_every and state.step % self._recipe.eval_every == 0 and state.batch < len(batches):
                    self._evaluate(pass_end=False)
                if state.step % self._recipe.checkpoint_every == 0:
                    self._save()
            done = state.batch == len(batches)
            if done:
                state.epoch, state.batch = state.epoch + 1, 0
            self._evaluate(pass_end=done)
            self._save()

    @property
    def _spent(self) -> float:
        """Share of the time limit that is used up."""
        minutes = (time.perf_counter() - self._started) / 60
        return minutes / self._recipe.max_minutes if self._recipe.max_minutes else 0.0

    def _progress(self, num_batches: int) -> float:
        """Share of the budget, passes or time, whichever ends first."""
        return max((self.state.epoch + self.state.batch / num_batches) / self._recipe.epochs, self._spent)

    def _set_rate(self, num_batches: int) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.learning_rate * rate(self._progress(num_batches))

    def _learn(self, batch: Batch) -> None:
        features = self._features(batch)
        lessons = self._lessons(batch, features)
        with self._products():
            losses = step_losses(self._head, self._outputs(batch, features), lessons, batch)
        self._optimizer.zero_grad(set_to_none=True)
        weigh(losses).backward()
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()
        self.state.step += 1
        self.state.batch += 1
        self._unlogged.append(losses.detach())
        if self.state.step % LOG_EVERY == 0:
            self._log()

    def _outputs(self, batch: Batch, features: Features) -> list[Tensor]:
        if self._scale is None:
            self._scale = usual_size(features.aux[:SCALE_ROWS].float())
        aux = features.aux.float() / self._scale
        return unroll(self._head, self._target.embeddings, aux, batch, self._recipe.unroll)

    def _lessons(self, batch: Batch, features: Features) -> Lessons:
        return Lessons(self._target.probabilities(features.final), self._draft_ids[batch.label])

    def _evaluate(self, *, pass_end: bool) -> None:
        if self._held_out is None:
            self._held_out = self._read_held_out()
        board = Scoreboard(self._recipe.unroll)
        with torch.no_grad():
            for batch, features in self._held_out:
                lessons = self._lessons(batch, features)
                with self._products():
                    board.add(self._head, self._outputs(batch, features), lessons, batch)
        score = board.score()
        best = max((row["accuracy"][0] for row in self.state.scores()), default=-1.0)
        self._note({"held_out_loss": score.loss, **_accuracies(score), "pass_end": pass_end})
        say(f"pass {self.state.epoch}, step {self.state.step}: {describe(score)}")
        self._after_score(self, score.accuracy[0] > best)

    def _read_held_out(self) -> list[tuple[Batch, Features]]:
        lengths = [c.length for c in self._conversations[self._num_training :]]
        found = []
        for members in deal(lengths, self._recipe.batch_tokens, None):
            shifted = [self._num_training + member for member in members]
            batch = make_batch(self._conversations, shifted).to(self._device)
            found.append((batch, self._features(batch)))
        return found

    def _log(self) -> None:
        if self._unlogged:
            losses = torch.stack(self._unlogged).mean(0)
            rate = self._optimizer.param_groups[0]["lr"]
            self._note({"loss": float(weigh(losses)), "losses": losses.tolist(), "learning_rate": rate})
            self._unlogged = []

    def _note(self, facts: dict[str, Any]) -> None:
        self.state.seconds = time.perf_counter() - self._started
        where = {"step": self.state.step, "epoch": self.state.epoch, "seconds": round(self.state.seconds, 1)}
        self.state.curve.append({**where, **facts})

    def _save(self) -> None:
        self._log()
        self.state.seconds = time.perf_counter() - self._started
        tensors = {
            "head": self._head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scale": self._scale,
        }
        save_state(self._state_path, self._identity, self.state, tensors)


def usual_size(rows: Tensor) -> Tensor:
    """[N, channels] -> [channels]: the median magnitude, which a few huge rows (the first of a text) do not move."""
    size = rows.abs().median(0).values
    return size.clamp(min=SMALLEST_SCALE * float(size.median()) + torch.finfo(size.dtype).tiny)


def describe(score: Score) -> str:
    steps = " / ".join(f"{share:.3f}" for share in score.accuracy)
    return f"held-out accuracy {steps}, {score.accuracy_top:.3f} in the top eight, loss {score.loss:.3f}"


def _accuracies(score: Score) -> dict[str, Any]:
    return {"accuracy": score.accuracy, "accuracy_top": score.accuracy_top, "num_tokens": score.num_tokens}
