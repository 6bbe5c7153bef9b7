"""Keyed random numbers and the exponential race that turns a distribution into a token.

Every number is a pure function of (seed, absolute position, token id, stream): no generator, no state, nothing
shared between requests. Token i arrives at `-ln(u_i) / p_i` and the first arrival is emitted, which draws from p
exactly (the Gumbel-max trick with exponential clocks). Because the clocks belong to tokens, a little noise in p
leaves the pick alone.

Candidates in order of p, ties by lowest id:

    [0, HEAD_SIZE)   the head: each races for itself, on HEAD_STREAM
    [HEAD_SIZE, n)   the tail: one runner keyed by TAIL_ID with the tail's total p, on HEAD_STREAM;
                     if it wins, they race among themselves on TAIL_STREAM

Knows nothing of logits or filters.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from echo_sched.tree import FloatArray, IntArray

HEAD_SIZE = 64
TAIL_ID = 2**63 - 1  # no vocabulary reaches it
HEAD_STREAM = 0
TAIL_STREAM = 1

# splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators")
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_FIRST = np.uint64(0xBF58476D1CE4E5B9)
MIX_SECOND = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: ArrayLike, positions: ArrayLike, ids: ArrayLike, stream: int) -> FloatArray:
    """Uniform numbers in (0, 1] for every (seed, position, id), broadcast against each other.

    seeds are in [0, 2**64); positions (index of the drawn token in prompt + output) and ids are not negative.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is the point
        state = _mix(np.asarray(seeds, np.uint64) + GOLDEN_GAMMA)
        state = _mix((state ^ np.asarray(positions, np.uint64)) + GOLDEN_GAMMA)
        state = _mix((state ^ np.uint64(stream)) + GOLDEN_GAMMA)
        state = _mix(state + (np.asarray(ids, np.uint64) + np.uint64(1)) * GOLDEN_GAMMA)
    return np.asarray(((state >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53)


def arrivals(weights: FloatArray, seeds: ArrayLike, positions: ArrayLike, ids: ArrayLike, stream: int) -> FloatArray:
    """Arrival times of candidates with these weights (p times any one constant). Weight 0 never arrives (inf)."""
    clocks = -np.log(uniforms(seeds, positions, ids, stream))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(weights > 0.0, clocks / weights, np.inf)


def first_arrival(times: FloatArray, ids: IntArray) -> IntArray:
    """The id of the earliest time along the last axis; equal times go to the lowest id."""
    earliest = times == times.min(axis=-1, keepdims=True)
    return np.asarray(np.where(earliest, ids, TAIL_ID).min(axis=-1))


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * MIX_FIRST
    state = (state ^ (state >> np.uint64(27))) * MIX_SECOND
    return state ^ (state >> np.uint64(31))
