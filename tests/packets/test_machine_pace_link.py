"""The reference link of `machine_pace.py` is a link: were it not, it would excuse every failure."""

from pathlib import Path

import pytest
from machine_pace import NoReferenceLinkError, reference_link, reference_link_share


def test_the_reference_link_carries_its_rate_or_somewhat_less():
    assert 0.8 < max(reference_link_share() for _ in range(5)) < 1.01


def test_a_link_is_made_while_another_stands_and_leaves_no_name_behind():
    def names() -> set[str]:
        return {path.name for path in Path("/run/netns").glob("*")}

    before = names()
    with reference_link() as first, reference_link() as second:
        assert len({Path(end).stat().st_ino for end in (*first, *second)}) == 4
        assert names() <= before
    assert not any(Path(end).exists() for end in (*first, *second))


def test_a_command_that_fails_is_named_with_what_it_said(monkeypatch):
    monkeypatch.setattr("machine_pace.LINK_GSO_BYTES", "no-number")
    with (
        pytest.raises(NoReferenceLinkError, match=r"gso_max_size no-number up: exit status \d+: .*no-number"),
        reference_link(),
    ):
        pass
