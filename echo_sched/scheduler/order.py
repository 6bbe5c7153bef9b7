"""The one order in which candidates are served, and counting along it.

Best first, ties by depth, arrival (request index), token id and parent: node numbers follow from it and never from the
order in which candidates arrive.
"""

import numpy as np

from echo_sched.tree import BoolArray, FloatArray, IntArray, Offers


def best_first(offers: Offers, chance: FloatArray, weight: FloatArray) -> IntArray:
    """Rows of the offers of one depth: by chance [C] times the request's weight [B], and then likewise by path
    probability, since chances may tie where path probabilities do not.
    """
    assert not np.isnan(offers.path_logp).any()
    path = offers.path_logp + np.log(weight)[offers.request]
    worth = chance * weight[offers.request]
    rows: IntArray = np.lexsort((offers.parent, offers.token, offers.request, -path, -worth))
    return rows


def rank_within(group: IntArray) -> IntArray:
    """[n] how many earlier entries carry the same number."""
    narrow = group.size > 0 and group.max() <= np.iinfo(np.uint16).max  # for which numpy's stable sort is linear
    order = np.argsort(group.astype(np.uint16) if narrow else group, kind="stable")
    ordered = group[order]
    place = np.arange(len(group))
    begins = np.ones(len(group), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    rank = np.empty(len(group), np.int64)
    rank[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return rank


def largest(values: FloatArray, count: int) -> FloatArray:
    """[<= count] the largest values, in no order. count is at least 1."""
    surplus = len(values) - count
    return values if surplus <= 0 else np.partition(values, surplus)[surplus:]


def even_shares(k_max: int, num_requests: int) -> IntArray:
    """[B] K_max split evenly; the first requests in arrival order get one more where it does not divide."""
    index = np.arange(num_requests)
    return k_max // max(num_requests, 1) + (index < k_max % max(num_requests, 1))


def mask(length: int, rows: IntArray) -> BoolArray:
    """[length] True at `rows`."""
    chosen = np.zeros(length, np.bool_)
    chosen[rows] = True
    return chosen
