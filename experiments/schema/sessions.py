"""Rules that need sessions, over arrivals that have none: they would do nothing, and nobody would see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from experiments.schema.errors import SpecError
from inputs.errors import dotted

if TYPE_CHECKING:
    from experiments.schema.models import Fabric

#: Decode choices that place requests by load where they have no session. A user's own may be one: nobody can tell.
_NEED_SESSIONS: Final = ("session-affinity",)


def refuse_where_none_has(fabrics: Sequence[Fabric]) -> None:
    """Raises SpecError for every fabric whose decode choice needs sessions: no request of the experiment has one."""
    found = [
        f"{dotted(('fabrics', i, 'decode_choice'))}: {choice!r} needs sessions, and no request of any tenant has one, "
        "so that it would be least-loaded; use least-loaded, or a trace whose rows name their sessions"
        for i, fabric in enumerate(fabrics)
        if (choice := getattr(fabric, "decode_choice", None)) in _NEED_SESSIONS
    ]
    if found:
        raise SpecError(found)
