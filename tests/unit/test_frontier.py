"""Points that are worth their price."""

from memtrials.metrics.frontier import frontier


def test_a_point_is_off_the_frontier_where_another_does_as_well_for_less_or_better_for_as_much():
    points = [(0.5, 1.0), (0.7, 2.0), (0.6, 2.0), (0.7, 3.0), (0.9, 9.0)]
    assert frontier(points) == [True, True, False, False, True]


def test_equal_points_are_both_on_it():
    assert frontier([(0.5, 1.0), (0.5, 1.0)]) == [True, True]
    assert frontier([]) == []
