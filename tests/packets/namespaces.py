"""Running commands in a named network namespace, in a chroot too."""

from __future__ import annotations


def inside(name: str) -> tuple[str, ...]:
    """The words to put before a command.

    Not `ip -n` nor `ip netns exec`: both remount `/`, which a chroot whose root is no mount point refuses.
    """
    return ("nsenter", f"--net=/run/netns/{name}")
