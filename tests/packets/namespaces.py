"""Running commands in a named network namespace, in a chroot too."""

from __future__ import annotations

from emulation.linux.netns import NETNS_DIR


def inside(name: str) -> tuple[str, ...]:
    """The words to put before a command. name: of a named namespace, or the path of any.

    Not `ip -n` nor `ip netns exec`: both remount `/`, which a chroot whose root is no mount point refuses.
    """
    return ("nsenter", f"--net={NETNS_DIR / name}")
