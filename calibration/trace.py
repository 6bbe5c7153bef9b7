"""The trace: what an ungated drafter offered at every position of every answer, as a file of gzipped JSON lines.

    header     schema version, model, drafter, shape of the trees, stop ids, requests, provenance
    pool       one line per request and position: the candidates there, as columns, and which of them the answer accepts
    ...

At position p of an answer p tokens are out; token p - 1 is the root, and the accepted candidates carry tokens p, p + 1,
and so on. Reads strictly: DataError names the file and the line. Knows no model, and not what is made of a trace.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibration.pool import Pool, pool_from_columns, pool_to_columns
from echo_sched.errors import ConfigError, DataError, ProfileError
from echo_sched.scheduler.fields import Fields
from echo_sched.scheduler.profile import Identity

SCHEMA_VERSION = 1
ALL_CANDIDATES = "all"  # a policy chooses among what was offered, not among what some other policy took
HEADER_KEYS = (
    "schema_version", "candidates", "model", "drafter", "max_depth", "branching", "temperature", "stop_ids",
    "requests", "provenance",
)  # fmt: skip
POOL_KEYS = ("request", "position", *Pool._fields)


@dataclass(frozen=True)
class TracedRequest:
    """An answer by its lengths, in tokens."""

    num_prompt_tokens: int
    max_new_tokens: int
    num_output_tokens: int


@dataclass(frozen=True)
class TraceHeader:
    model: Identity
    drafter: Identity
    max_depth: int  # trees are no deeper
    branching: int  # most children per node, and most nodes per depth that were drafted further
    temperature: float
    stop_ids: tuple[int, ...]  # nothing follows them
    requests: tuple[TracedRequest, ...]
    provenance: dict[str, Any]


class OfferTrace(NamedTuple):
    header: TraceHeader
    pools: tuple[tuple[Pool, ...], ...]  # [requests][output tokens - 1]; position p is at p - 1


def write_trace(path: str | Path, trace: OfferTrace) -> None:
    """The file appears whole or not at all. Raises ConfigError where it cannot be written."""
    part = Path(f"{path}.part")
    try:
        # no name and no time inside: the same trace is the same bytes
        with open(part, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
            for line in _lines(trace):
                file.write((json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode())
        os.replace(part, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def read_trace(path: str | Path) -> OfferTrace:
    """Raises DataError, naming the file and the line, for whatever is not a whole trace of every candidate."""
    number, header, pools = 0, None, list[tuple[Pool, ...]]()
    current: list[Pool] = []
    try:
        for line in _text_lines(path):
            number += 1
            data = _document(line)
            if header is None:
                header = _header(data)
            elif len(pools) == len(header.requests):
                raise DataError("there is no further request")
            else:
                current.append(_pool(data, header, len(pools), len(current) + 1))
            while len(pools) < len(header.requests):
                if len(current) < header.requests[len(pools)].num_output_tokens - 1:
                    break
                pools.append(tuple(current))
                current = []
    except (ProfileError, DataError) as error:
        raise DataError(f"trace {path}, line {number}: {error}") from error
    if header is None:
        raise DataError(f"trace {path} is empty")
    if len(pools) < len(header.requests):
        raise DataError(f"trace {path} ends after line {number}, within request {len(pools)}: it is not whole")
    return OfferTrace(header, tuple(pools))


def _lines(trace: OfferTrace) -> Iterator[dict[str, Any]]:
    header = trace.header
    yield {"schema_version": SCHEMA_VERSION, "candidates": ALL_CANDIDATES, **asdict(header)}
    for request, pools in enumerate(trace.pools):
        assert len(pools) == header.requests[request].num_output_tokens - 1, "a pool for every position"
        for position, pool in enumerate(pools, start=1):
            yield {"request": request, "position": position, **pool_to_columns(pool)}


def _text_lines(path: str | Path) -> Iterator[str]:
    """Raises DataError where no further line can be had."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from file
    except (EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"the file is cut off or damaged behind here ({error})") from error
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}") from error


def _document(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}") from error


def _header(data: Any) -> TraceHeader:
    version = data.get("schema_version", SCHEMA_VERSION) if isinstance(data, dict) else SCHEMA_VERSION
    if version != SCHEMA_VERSION:
        raise DataError(f"schema_version must be {SCHEMA_VERSION}, got {version!r}; run calibrate --trace again")
    fields = Fields(data, "", HEADER_KEYS)
    if fields.text("candidates") != ALL_CANDIDATES:
        raise DataError(
            f"the offers lack what was not drafted further (candidates: {fields.text('candidates')!r}, must be "
            f"{ALL_CANDIDATES!r}), so no other policy can be replayed on them; run calibrate --trace again"
        )
    return TraceHeader(
        model=_identity(fields, "model"),
        drafter=_identity(fields, "drafter"),
        max_depth=fields.integer("max_depth", 1),
        branching=fields.integer("branching", 1),
        temperature=fields.number("temperature"),
        stop_ids=tuple(int(value) for value in fields.numbers("stop_ids")),
        requests=tuple(_request(row) for row in fields.objects("requests", tuple(TracedRequest.__annotations__))),
        provenance=fields.free_object("provenance"),
    )


def _identity(fields: Fields, key: str) -> Identity:
    row = fields.object(key, ("name", "fingerprint"))
    return Identity(row.text("name"), row.optional_text("fingerprint"))


def _request(row: Fields) -> TracedRequest:
    request = TracedRequest(*(row.integer(name, 1) for name in TracedRequest.__annotations__))
    if request.num_output_tokens > request.max_new_tokens:
        raise row.error("num_output_tokens", "must not exceed max_new_tokens")
    return request


def _pool(data: Any, header: TraceHeader, request: int, position: int) -> Pool:
    fields = Fields(data, "", POOL_KEYS)
    found = fields.integer("request", 0), fields.integer("position", 1)
    if found != (request, position):
        raise DataError(f"expected position {position} of request {request}, got {found[1]} of {found[0]}")
    traced = header.requests[request]
    deepest = min(header.max_depth, traced.max_new_tokens - position - 1)
    pool = pool_from_columns({name: fields.list_of(name) for name in Pool._fields}, deepest)
    if int(pool.accepted.sum()) > traced.num_output_tokens - position:
        raise DataError("accepted goes beyond the end of the answer")
    # every node takes part in a step's numbers, so that none may pretend to have more children than were asked for
    families = np.unique(pool.parent, return_counts=True)[1]
    if families.max(initial=0) > header.branching:
        raise DataError(f"parent has more than {header.branching} children")
    return pool
