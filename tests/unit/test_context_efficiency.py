"""How much of a history a context is."""

import pytest

from memtrials.metrics.context import efficiency
from memtrials.tokens import count_tokens


@pytest.mark.parametrize(
    ("retrieved", "full", "compression", "reduction"),
    [
        (9, 16, 16 / 9, 0.4375),
        (22, 16, 8 / 11, -0.375),
        (500, 2000, 4.0, 0.75),
        (3000, 2000, 2 / 3, -0.5),
        (0, 2000, None, 1.0),
        (5, 0, 0.0, None),
        (0, 0, None, None),
        (5, None, None, None),
    ],
)
def test_compression_and_reduction(
    retrieved: int, full: int | None, compression: float | None, reduction: float | None
) -> None:
    assert efficiency(retrieved, full) == pytest.approx((compression, reduction))


def test_the_tokens_of_the_worked_example() -> None:
    line = "I like green tea, green tea only."
    assert count_tokens(line) == 9
    assert count_tokens(f"[observation:s1:turn:1 rank=1] {line}") == 22
    assert count_tokens(f"user: {line}\nassistant: Noted.") == 16
