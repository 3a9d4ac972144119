"""The reference link of `machine_pace.py` is a link: were it not, it would excuse every failure."""

from machine_pace import reference_link_share


def test_the_reference_link_carries_its_rate_or_somewhat_less():
    assert 0.8 < max(reference_link_share() for _ in range(5)) < 1.01
