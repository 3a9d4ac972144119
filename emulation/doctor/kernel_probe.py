"""Tries kernel features for `emulation.doctor.preflight`: namespaces, links, qdiscs, filters, routes and sysctls.

Everything is tried in an anonymous network namespace of one child process. Whatever ends that process takes the
namespace along, so a probe can leave nothing behind.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROBE_TIMEOUT_S = 20

# Each line of output is `name <tab> ok|failed <tab> what the command said`. No `ip -n` and no `ip netns exec`:
# those remount /, which fails in a chroot whose / is no mount point. 55 is 0x37: both addresses, protocol, both ports.
PROBE_SCRIPT = r"""
probe() {
  name=$1; shift
  if said=$("$@" 2>&1); then state=ok; else state=failed; fi
  printf '%s\t%s\t%s\n' "$name" "$state" "$(printf %s "$said" | tr '\n\t' '  ')"
}
set_and_read() { echo "$2" >"/proc/sys/$1" && [ "$(cat "/proc/sys/$1")" = "$2" ]; }
htb() {
  tc qdisc replace dev probe0 root handle 1: htb &&
  tc class add dev probe0 parent 1: classid 1:1 htb rate 36mbit quantum 9000
}
probe namespaces unshare --net true
probe veth ip link add probe0 type veth peer name probe1
probe gso_max_size ip link set dev probe0 gso_max_size 9000
ip link set dev probe0 up; ip address add 10.255.0.1/24 dev probe0
probe rto_min ip route add 10.254.0.0/24 via 10.255.0.2 rto_min 20ms
probe hash_policy set_and_read net/ipv4/fib_multipath_hash_policy 3
probe hash_fields set_and_read net/ipv4/fib_multipath_hash_fields 55
probe hash_seed set_and_read net/ipv4/fib_multipath_hash_seed 1
probe htb htb
probe bfifo tc qdisc add dev probe0 parent 1:1 bfifo limit 60000
probe u32 tc filter add dev probe0 parent 1: protocol ip prio 1 u32 match ip src 10.255.0.0/28 flowid 1:1
tc qdisc delete dev probe0 root
probe netem tc qdisc replace dev probe0 root netem delay 1ms
probe prio tc qdisc replace dev probe0 root prio
probe fq tc qdisc replace dev probe0 root fq
"""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one probe came to, and what its commands said."""

    succeeded: bool
    said: str


def probe_kernel() -> dict[str, ProbeResult]:
    """Run `PROBE_SCRIPT`; an empty dict when this user may make no network namespace at all.

    Without root the features are tried in a user namespace, where the kernel allows one.
    """
    privileges = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *privileges, "--net", "sh", "-c", PROBE_SCRIPT]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            env=search_environment(),
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return {}
    results = parse_probe(done.stdout)
    if privileges and not ("namespaces" in results and results["namespaces"].succeeded):
        return {}  # a user namespace without rights, as AppArmor makes it on Ubuntu 24.04: its refusals say nothing
    return results


def parse_probe(output: str) -> dict[str, ProbeResult]:
    """Read `PROBE_SCRIPT`'s lines, by probe. Raises ValueError for a line of another form."""
    results = {}
    for number, line in enumerate(output.splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) != 3 or fields[1] not in ("ok", "failed"):
            raise ValueError(f"kernel probe, line {number}: expected 'name<tab>ok|failed<tab>text', got {line!r}")
        results[fields[0]] = ProbeResult(fields[1] == "ok", fields[2].strip())
    return results


def module_available(name: str, *, load: bool = False) -> bool:
    """Is this kernel module loaded, or there to be loaded? With ``load`` (root) it is loaded, which settles it."""
    if Path("/sys/module", name).exists():
        return True
    modprobe = which("modprobe")
    if modprobe is None:
        return False
    arguments = ["--quiet", name] if load else ["--quiet", "--dry-run", name]
    command = [modprobe, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def which(program: str) -> str | None:
    """The program's path, looked for in the system directories as well; None when it is not there."""
    return shutil.which(program, path=search_environment()["PATH"])


def search_environment() -> dict[str, str]:
    """This process's environment, with the directories an unprivileged Debian shell lacks, and messages in English."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    return {**os.environ, "PATH": path, "LC_ALL": "C"}
