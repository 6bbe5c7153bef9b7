"""The one order in which candidates are served, and counting along it.

Best first, ties by depth, arrival (request index), token id and parent: node numbers follow from it and never from the
order in which candidates arrive.
"""

import numpy as np

from echo_sched.tree import BoolArray, FloatArray, IntArray, Offers

MOST_NARROW = np.iinfo(np.uint16).max  # up to which numpy's stable sort is linear


def best_first(offers: Offers, chance: FloatArray, weight: FloatArray) -> IntArray:
    """Rows of the offers of one depth: by chance [C] times the request's weight [B], and then likewise by path
    probability, since chances may tie where path probabilities do not.
    """
    assert not np.isnan(offers.path_logp).any()
    path = offers.path_logp + np.log(weight)[offers.request]
    worth = chance * weight[offers.request]
    rows = by_worth(worth, path)
    path, worth = path[rows], worth[rows]
    if ((path[1:] == path[:-1]) & (worth[1:] == worth[:-1])).any():  # else more keys would change nothing
        rows = rows[np.lexsort((offers.parent[rows], offers.token[rows], offers.request[rows], -path, -worth))]
    return rows


def by_worth(worth: FloatArray, path: FloatArray) -> IntArray:
    """Rows by falling worth [n], ties by falling path probability [n], and of equals the earlier first."""
    rows = np.argsort(-worth, kind="stable")
    ordered = worth[rows]
    # else a second key would change nothing
    return np.lexsort((-path, -worth)) if (ordered[1:] == ordered[:-1]).any() else rows


def rank_within(group: IntArray) -> IntArray:
    """[n] how many earlier entries carry the same number."""
    if group.size == 0:
        return np.zeros(0, np.int64)
    narrow = group.max() <= MOST_NARROW
    order = (group.astype(np.uint16) if narrow else group).argsort(kind="stable")
    ordered, place = group[order], np.arange(len(group))
    later = ordered[1:] == ordered[:-1]  # than the first of its group
    begins = place.copy()
    begins[1:][later] = 0
    rank = np.empty(len(group), np.int64)
    rank[order] = place - np.maximum.accumulate(begins)
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
