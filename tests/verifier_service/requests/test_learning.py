"""What planners learn of blocks, chains and trees."""

from cluster.scheduling import Round
from cluster.speculation.messages import DraftBlock
from verifier_service.requests.learning import after, compared, learned


def test_what_is_learned_of_a_block_of_which_nothing_is_left():
    block = DraftBlock((1, 2, 3), (0.9, 0.8, 0.7))
    assert compared(block, 4, 1, (1, 2, 3, 9)) == Round(4, 3, 3, True, (0.9, 0.8, 0.7))
    assert compared(block, 4, 1, (1, 9)) == Round(4, 2, 1, False, (0.9, 0.8))
    assert compared(block, 4, 1, (1, 2, 9)) == Round(4, 3, 2, True, (0.9, 0.8, 0.7))
    assert compared(DraftBlock(), 4, 1, (1,)) == Round(4, 0, 0, True, ())


def test_what_is_learned_of_a_tree_is_what_its_path_tells():
    #     0 - 2 - 3
    #   /   \ 4
    # -1
    #   \ 1 - 5
    tree = DraftBlock((7, 8, 9, 1, 2, 3), (0.9, 0.8, 0.7, 0.6, 0.5, 0.4), (-1, -1, 0, 2, 0, 1))
    assert tree.along((8, 3, 1)) == (1, 5)
    assert tree.depth() == 3
    rest = tree.after((7,))
    assert (rest.tokens, rest.max_q, rest.parents) == ((9, 1, 2), (0.7, 0.6, 0.5), (-1, 0, -1))
    assert tree.after((7, 2)) is None
    assert tree.after((9,)) is None
    assert learned(tree, (), 3, 2, True) == Round(3, 3, 0, True, (0.9,), 2, (), 2, 2.0)
    assert learned(tree, (0, 4), 3, 2, True) == Round(3, 2, 2, False, (0.9, 0.7), 2, (0, 1), 0, 2.0)
    assert learned(tree, (0, 2, 3), 3, 2, True) == Round(3, 3, 3, True, (0.9, 0.7, 0.6), 2, (0, 0, 0), 0, 2.0)
    assert compared(tree, 3, 2, (8, 4)) == Round(3, 2, 1, False, (0.9, 0.4), 2, (1,), 1, 2.0)
    before, behind = compared(tree, 3, 2, (7,)), learned(rest, (2,), 2, 2, True)
    assert after(before, behind) == learned(tree, (0, 4), 3, 2, True)
