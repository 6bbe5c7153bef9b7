"""Generations as token sequences: reading, the split by prompt, and the draft vocabulary.

A generations file is JSON Lines (gzipped or not): `prompt` or `messages` as in any prompt file, and the target's own
answer as `response_ids`, or as `response` text; `source` is optional. Knows no model; the tokenizer is a Protocol.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from echo_sched.errors import DataError
from echo_sched.prompts import ChatTemplate, Prompt, encode_prompt, load_prompts, load_rows
from echo_sched.tree import IntArray

MIN_ANSWER = 2  # the first answer token starts a draft, the second is the first that can be drafted
HASH_RANGE = 2**64
ANSWER_FIELDS = ("response_ids", "response")


class Conversation(NamedTuple):
    """A prompt and the target's answer to it, in the target's tokens."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    source: str

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.answer_ids)


class Generations(NamedTuple):
    """What a generations file held."""

    conversations: list[Conversation]
    num_skipped: int
    skip_reasons: dict[str, int]
    sha256: str


class DraftVocabulary(NamedTuple):
    """The target tokens that the head can draft, ascending, and how much of the answers they are."""

    target_ids: IntArray  # [draft_vocab]
    coverage: float

    @property
    def offsets(self) -> IntArray:
        """d2t of the public layout: draft token j is target token j + offset[j]."""
        return self.target_ids - np.arange(len(self.target_ids))

    def draft_ids(self, vocab_size: int) -> IntArray:
        """[vocab]: draft token of every target token, -1 for those the head cannot draft."""
        draft = np.full(vocab_size, -1, np.int64)
        draft[self.target_ids] = np.arange(len(self.target_ids))
        return draft


class Corpus(NamedTuple):
    """What is learnt from, and what is only measured on."""

    generations: Generations
    training: list[Conversation]
    held_out: list[Conversation]
    vocabulary: DraftVocabulary

    def sources(self) -> dict[str, int]:
        """Conversations by source, most first."""
        return dict(Counter(conversation.source for conversation in (*self.training, *self.held_out)).most_common())

    def describe(self) -> str:
        num_tokens = sum(conversation.length for conversation in self.training)
        num_answered = sum(len(conversation.answer_ids) for conversation in self.training)
        return (
            f"{len(self.training)} conversations to learn from ({num_tokens} tokens, {num_answered} of them answers), "
            f"{len(self.held_out)} held out, {self.generations.num_skipped} rows left out; the draft vocabulary "
            f"covers {self.vocabulary.coverage:.1%} of the answers"
        )


def holds_answers(path: str | Path) -> bool:
    """Whether a file is a generations file: any of its rows has an answer. Raises DataError if it cannot be read."""
    return any(_has_answer(row) for row in load_rows(path).values())


def load_generations(
    path: str | Path, tokenizer: Any, *, vocab_size: int, max_len: int, chat_template: ChatTemplate
) -> Generations:
    """Every usable conversation. Rows without one, or longer than `max_len` tokens, are counted with their reason.

    Raises DataError when nothing is usable.
    """
    rows, file = load_rows(path), load_prompts(path)
    conversations: list[Conversation] = []
    reasons: Counter[str] = Counter(file.bad_row_reasons)
    for prompt in file.prompts:
        found = _conversation(prompt, rows[prompt.source_row], tokenizer, vocab_size, max_len, chat_template)
        if isinstance(found, str):
            reasons[found] += 1
        else:
            conversations.append(found)
    if not conversations:
        counts = ", ".join(f"{reason}: {count}" for reason, count in reasons.most_common())
        raise DataError(f"{path}: no usable answer ({counts})")
    return Generations(conversations, reasons.total(), dict(reasons), file.sha256)


def draw(conversations: Sequence[Conversation], most: int | None, seed: int) -> list[Conversation]:
    """At most `most` of them, at random."""
    if most is None or most >= len(conversations):
        return list(conversations)
    return random.Random(seed).sample(conversations, most)


def split(
    conversations: Sequence[Conversation], share: float, most: int
) -> tuple[list[Conversation], list[Conversation]]:
    """(training, held out): a prompt's hash decides, so that the same prompt is never on both sides.

    About `share` of the conversations are held out, and about `most` at most. Raises DataError if a side is empty.
    """
    bound = min(share, most / len(conversations)) * HASH_RANGE
    training = [c for c in conversations if _hash(c.prompt_ids) >= bound]
    held_out = [c for c in conversations if _hash(c.prompt_ids) < bound]
    if not training or not held_out:
        raise DataError(f"{len(conversations)} answers are too few to hold out a share of {share:g}")
    return training, held_out


def draft_vocabulary(
    conversations: Iterable[Conversation], size: int, vocab_size: int, always: Iterable[int]
) -> DraftVocabulary:
    """The `size` tokens most frequent in answers; prompts decide among equals, then the lower id. `always` are in."""
    answers, prompts = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    for conversation in conversations:
        np.add.at(answers, list(conversation.answer_ids), 1)
        np.add.at(prompts, list(conversation.prompt_ids), 1)
    forced = np.zeros(vocab_size, np.bool_)
    forced[list(always)] = True
    order = np.lexsort((np.arange(vocab_size), -prompts, -answers, ~forced))
    chosen = np.sort(order[: min(size, vocab_size)])
    return DraftVocabulary(chosen, float(answers[chosen].sum() / answers.sum()))


def _conversation(
    prompt: Prompt, row: Any, tokenizer: Any, vocab_size: int, max_len: int, chat_template: ChatTemplate
) -> Conversation | str:
    """The row's conversation, or why it has none."""
    if not _has_answer(row):
        return "no answer"
    try:
        prompt_ids = encode_prompt(tokenizer, prompt, chat_template)
    except DataError:
        return "refused by the chat template"
    answer_ids = row.get("response_ids")
    if answer_ids is None:
        answer_ids = tokenizer.encode(row["response"], add_special_tokens=False)
    if not prompt_ids or not all(0 <= token < vocab_size for token in (*prompt_ids, *answer_ids)):
        return "tokens outside the model's vocabulary"
    if len(answer_ids) < MIN_ANSWER:
        return f"an answer of fewer than {MIN_ANSWER} tokens"
    if len(prompt_ids) + len(answer_ids) > max_len:
        return f"longer than {max_len} tokens"
    return Conversation(tuple(prompt_ids), tuple(answer_ids), prompt.category or "unnamed")


def _has_answer(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    ids, text = (row.get(name) for name in ANSWER_FIELDS)
    if ids is None:
        return isinstance(text, str)
    return isinstance(ids, list) and all(type(token) is int for token in ids)


def _hash(ids: Sequence[int]) -> int:
    digest = hashlib.blake2b(np.asarray(ids, np.int64).tobytes(), digest_size=8)
    return int.from_bytes(digest.digest())
