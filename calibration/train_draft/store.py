"""Keeps a target's features on disk, so that only the first pass over the data asks the target.

    FOLDER/features.json   whose features they are
    FOLDER/aux.bf16        [tokens, num_aux * hidden], conversation after conversation
    FOLDER/final.bf16      [draft starts, hidden]
    FOLDER/done.u8         [conversations]: 1 where both are written

Rounded to bfloat16: about 2 bytes per number, so 4.6 kB per token for hidden size 576 and three layers.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibration.train_draft.batches import Batch
from calibration.train_draft.data import Conversation
from calibration.train_draft.target import Features
from echo_sched.errors import ConfigError

FACTS_FILE = "features.json"
GIB = 2**30


class FeatureStore:
    """Answers for a batch from disk, and asks `compute` for what is missing."""

    def __init__(
        self,
        folder: Path,
        identity: dict[str, Any],
        conversations: Sequence[Conversation],
        widths: tuple[int, int],
        compute: Callable[[Batch], Features],
    ) -> None:
        """`widths`: of aux and final. `identity` must tell apart whatever would give other features.

        Raises ConfigError when the folder holds other features or cannot take these.
        """
        counts = (
            [conversation.length for conversation in conversations],
            [len(conversation.answer_ids) - 1 for conversation in conversations],
        )
        self._compute = compute
        self._ranges = [np.concatenate([[0], np.cumsum(count)]).tolist() for count in counts]
        sizes = [ranges[-1] * width for ranges, width in zip(self._ranges, widths, strict=True)]
        try:
            _claim(folder, identity, 2 * sum(sizes))
            aux, final = (
                torch.from_file(str(folder / name), shared=True, size=size, dtype=torch.bfloat16)
                for name, size in zip(("aux.bf16", "final.bf16"), sizes, strict=True)
            )
            done = torch.from_file(str(folder / "done.u8"), shared=True, size=len(conversations), dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"--cache-features {folder}: {str(error).splitlines()[0]}") from error
        self._tables = [table.view(-1, width) for table, width in zip((aux, final), widths, strict=True)]
        self._done = done

    def features(self, batch: Batch) -> Features:
        """Of a batch on any device."""
        members = list(batch.members)
        if self._done[members].all():
            aux, final = (
                torch.cat([table[ranges[m] : ranges[m + 1]] for m in members])
                for table, ranges in zip(self._tables, self._ranges, strict=True)
            )
            return Features(aux.to(batch.ids.device), final.to(batch.ids.device))
        features = self._compute(batch)
        for table, ranges, rows in zip(self._tables, self._ranges, features, strict=True):
            self._write(table, ranges, members, rows)
        self._done[members] = 1
        return Features(*(rows.to(torch.bfloat16) for rows in features))

    @staticmethod
    def _write(table: Tensor, ranges: list[int], members: list[int], rows: Tensor) -> None:
        parts = rows.to("cpu", torch.bfloat16).split([ranges[m + 1] - ranges[m] for m in members])
        for member, part in zip(members, parts, strict=True):
            table[ranges[member] : ranges[member + 1]] = part


def _claim(folder: Path, identity: dict[str, Any], num_bytes: int) -> None:
    """Make the folder ours, or see that it is. Raises OSError or ConfigError."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = folder / FACTS_FILE
    if facts.exists():
        if json.loads(facts.read_text()) != identity:
            raise ConfigError(f"--cache-features {folder} holds features of another model or data; name another folder")
        return
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise ConfigError(
            f"--cache-features {folder}: features take {num_bytes / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free"
        )
    facts.write_text(json.dumps(identity, indent=1))
