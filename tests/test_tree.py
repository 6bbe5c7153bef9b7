"""Tree algebra and packing, against definitions written out naively."""

from hypothesis import given
from hypothesis import strategies as st

from echo_sched.tree import ROOT, DraftTree, Segment, ancestor_mask, depths_of, is_prefix_closed, pack

parents_lists = st.lists(st.integers(0, 10**6), max_size=24).map(
    lambda numbers: [number % (row + 1) - 1 for row, number in enumerate(numbers)]
)


def ancestors(parents: list[int], row: int) -> set[int]:
    return set() if row < 0 else {row} | ancestors(parents, parents[row])


@given(parents_lists)
def test_mask_and_depths_follow_ancestry(parents: list[int]) -> None:
    mask = ancestor_mask(parents)
    for row in range(len(parents)):
        assert set(mask[row].nonzero()[0]) == ancestors(parents, row)
    assert depths_of(parents).tolist() == [len(ancestors(parents, row)) - 1 for row in range(len(parents))]


@given(st.lists(st.integers(-2, 8), max_size=8))
def test_prefix_closed_means_every_parent_comes_first(parents: list[int]) -> None:
    expected = all(parent == -1 or parent in range(row) for row, parent in enumerate(parents))
    assert is_prefix_closed(parents) == expected


segments = st.lists(st.tuples(parents_lists.filter(bool), st.integers(0, 50)), max_size=6)


@given(segments)
def test_pack_lays_segments_end_to_end(parts: list[tuple[list[int], int]]) -> None:
    given_segments = [
        Segment(slot, base, [100 * slot + row for row in range(len(parents))], parents, len(parents) // 2)
        for slot, (parents, base) in enumerate(parts)
    ]
    tree = pack(given_segments)
    assert tree.num_rows == sum(len(segment.tokens) for segment in given_segments)
    for index, segment in enumerate(given_segments):
        low, high = tree.start[index], tree.start[index + 1]
        assert tree.token[low:high].tolist() == segment.tokens
        assert tree.local_parents(index).tolist() == segment.parents
        assert tree.position[low:high].tolist() == [segment.base_len + d for d in depths_of(segment.parents)]
        assert (tree.segment[low:high] == index).all()
        rows = tree.logit_row[tree.logit_start[index] : tree.logit_start[index + 1]]
        assert rows.tolist() == list(range(high - segment.num_logit_rows, high))
    for row, parent in enumerate(tree.parent):
        assert -1 <= parent < row - tree.start[tree.segment[row]]


@given(parents_lists.filter(bool), st.integers(0, 50), st.data())
def test_rows_of_earlier_forwards_are_counted_and_not_computed_again(
    parents: list[int], base: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(parents) - 1))
    whole = pack([Segment(3, base, list(range(len(parents))), parents, 0)])
    rest = pack([Segment(3, base, list(range(cut, len(parents))), parents[cut:], 0, tail=parents[:cut])])
    assert rest.num_rows == len(parents) - cut and rest.first_index.tolist() == [base + cut]
    assert rest.local_parents(0).tolist() == parents
    for name in ("token", "depth", "position"):
        assert (getattr(rest, name) == getattr(whole, name)[cut:]).all()


def test_a_draft_tree_knows_paths_and_children() -> None:
    tree = DraftTree()
    left = tree.add(ROOT, 5, -0.1)
    right = tree.add(ROOT, 6, -0.9)
    leaf = tree.add(right, 5, -1.5)
    assert tree.depths == [1, 1, 2]
    assert tree.path(leaf) == [6, 5] and tree.path(ROOT) == []
    assert tree.child(ROOT, 5) == left and tree.child(right, 5) == leaf and tree.child(left, 5) is None
