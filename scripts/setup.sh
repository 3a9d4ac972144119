#!/usr/bin/env bash
# Sets a Debian 12/13 or Ubuntu 22.04/24.04 machine up. `./heliograph setup` is the way to call it.
#
#   scripts/setup.sh [system] [venv]    system: apt packages (root);  venv: .venv with the pinned Python packages
#
# Each step prints one line with its time. One that fails prints the end of its output and the remedy, and ends the set-up: the stamps
# that ./heliograph trusts are written last.
set -euo pipefail
umask 022 # a .venv made under sudo must be readable by the checkout's owner
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
unset "${!PYTHON@}" # of another Python
export PYTHONNOUSERSITE=1

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/state.sh
source "$here/scripts/state.sh"

system_packages=(openvswitch-switch mininet iproute2 ethtool iputils-ping tcpdump procps util-linux kmod python3 python3-venv ca-certificates)
failure="$here/.cache/setup-failure.log" # of the last set-up, where it failed: what to report, and whether it fails the same way again
policy=/usr/sbin/policy-rc.d
policy_mark="# heliograph set-up: temporary"
output=$(mktemp)
otherwise="" # what else there is to try, where the remedy of a step has failed

finish() {
  rm -f "$output"
  release_services
}
trap finish EXIT
trap 'echo "heliograph: set-up interrupted; run it again to finish it" >&2; exit 130' INT TERM HUP

say() { echo "heliograph: $*" >&2 || true; } # who cannot hear it is set up all the same

step() { # what, remedy, command...
  local what=$1 remedy=$2 began=$EPOCHREALTIME status=0
  shift 2
  printf 'heliograph: %s ...' "$what" >&2 || true
  # A function called as a condition runs without `set -e`; a subshell after `set +e` does not.
  set +e
  (
    set -e
    "$@"
  ) >"$output" 2>&1 </dev/null
  status=$?
  set -e
  local took_us=$((${EPOCHREALTIME/[.,]/} - ${began/[.,]/}))
  printf ' %s (%d.%01d s)\n' "$([[ $status == 0 ]] && echo done || echo FAILED)" $((took_us / 1000000)) $((took_us / 100000 % 10)) >&2 || true
  if [[ $status != 0 ]]; then
    say "set-up failed at: $what (exit status $status). The end of its output:"
    tail -n 25 "$output" | sed 's/^/    /' >&2
    say "remedy: $remedy"
    not_again "$what (exit status $status)"
    exit 1
  fi
}

give_up() { # what is wrong, remedy
  say "$1. Remedy: $2"
  : >"$output"
  not_again "$1"
  exit 1
}

# Keeps what failed, for a report and for the next set-up, and says so where the last one failed the same way: its remedy is of no use
# then. Times, sizes, addresses and names of temporary files differ each time.
not_again() { # what failed
  local mark before=""
  mark=$({ echo "$1" && tail -n 25 "$output"; } | sed -E 's#/tmp/[^ ]*|0x[0-9a-f]+|[0-9]+([.,][0-9]+)?##g' | sha256sum)
  if [[ -r $failure ]]; then read -r before <"$failure" || true; fi
  if [[ $before == "$mark" ]]; then
    say "the set-up before failed the same way, with the same remedy. If that was followed, it does not help here. $otherwise"
    say "Or report it with $failure, which has all of the output"
  fi
  rm -f "$failure" && mkdir -p "${failure%/*}" && {
    echo "$mark"
    echo "$1"
    date -u +%FT%TZ
    uname -a
    grep -h '^PRETTY_NAME=' /etc/os-release
    "$here/.venv/bin/python" -VV
    git -C "$here" describe --always --dirty
    cat "$output"
  } >"$failure" 2>/dev/null && if [[ $(id -u) == 0 ]]; then chown --no-dereference --reference="$here" "${failure%/*}" "$failure"; fi || true
}

# --- system packages ---------------------------------------------------------------------------------------------------------------

missing_packages() {
  local package
  for package in "${system_packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done
}

# Open vSwitch's package starts a system-wide service. A run starts switches of its own and must not meet another, so the service is
# kept from starting while the package goes in. A machine with a policy of its own keeps that.
hold_services() {
  [[ -e $policy ]] && ! grep -qF "$policy_mark" "$policy" && return 0
  printf '#!/bin/sh\n%s, removed when the installation ends\ncase "$1" in openvswitch*|ovs*) exit 101 ;; esac\nexit 0\n' "$policy_mark" >"$policy"
  chmod 755 "$policy"
  say "holding the Open vSwitch service back while its package is installed ($policy, removed afterwards)"
}

release_services() { # also removes one that a killed set-up left
  if [[ -w $policy ]] && grep -qF "$policy_mark" "$policy"; then rm -f "$policy"; fi
}

apt() { apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@"; }

set_up_system() {
  otherwise="Try: apt-get --fix-broken install, another mirror in /etc/apt/sources.list*, or install by hand: ${system_packages[*]}"
  if ! command -v apt-get >/dev/null; then
    [[ -z $(missing_binaries) ]] && return 0
    give_up "this system has no apt-get" "install by hand what provides $(missing_binaries) and Python 3.10 to 3.13 with venv, then run this again"
  fi
  local packages
  mapfile -t packages < <(missing_packages)
  if ((${#packages[@]})); then
    if [[ $(id -u) != 0 ]]; then
      say "system packages are missing: ${packages[*]}. Remedy: sudo ./heliograph setup"
      exit 1
    fi
    local fresh_switch=false
    [[ " ${packages[*]} " == *" openvswitch-switch "* ]] && fresh_switch=true
    step "refreshing the package lists" "check the network and /etc/apt/sources.list*, then run: apt-get update" apt update
    if $fresh_switch; then hold_services; fi
    step "installing system packages: ${packages[*]}" \
      "run: apt-get install --no-install-recommends ${packages[*]} (on Ubuntu some are in 'universe': add-apt-repository universe)" \
      apt install -y --no-install-recommends --no-upgrade "${packages[@]}"
    release_services
    if $fresh_switch && [[ -d /run/systemd/system ]]; then
      # It would start at the next boot otherwise. Only ever done to a service that this set-up brought.
      step "leaving the system's Open vSwitch service off (systemctl enable --now openvswitch-switch turns it on)" \
        "run: systemctl disable openvswitch-switch" systemctl disable openvswitch-switch.service
    fi
  fi
  local missing
  missing=$(missing_binaries)
  if [[ -n $missing ]]; then
    give_up "the packages are installed, yet these programs are not on the path: $missing" "apt-get install --reinstall ${system_packages[*]}"
  fi
}

# --- Python environment ------------------------------------------------------------------------------------------------------------

# The system's python3 first: it stays when a version manager goes. HELIOGRAPH_PYTHON names another.
find_python() {
  local candidate
  for candidate in ${HELIOGRAPH_PYTHON:-/usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.10}; do
    candidate=$(command -v "$candidate") || continue
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

make_venv() { # python
  rm -rf "$here/.venv"
  "$1" -m venv "$here/.venv"
}

pip() { "$here/.venv/bin/python" -m pip install --progress-bar off -c "$here/constraints.txt" "$@"; }

# Every package is pinned, those that others need too: nothing is left to resolve, so as many pips as there are processors install a
# share each, and `pip check` says what is missing. Without build isolation source packages build with the pinned tools, and Ryu with its
# shim. Nothing is compiled here: of 9,300 files 2,600 are (`check_venv`).
install_packages() {
  shares=$(mktemp -d)
  trap 'rm -rf "$shares"' EXIT
  grep -E '^[A-Za-z]' "$here/constraints.txt" | split --number="r/$(nproc)" - "$shares/"
  # not jobs in the background: those would not hear a Ctrl-C. Of what they say, that of those that failed comes last.
  printf '%s\0' "$shares"/* | PYTHONPATH="$here/scripts/ryu_build" xargs -0 -n 1 -P 0 bash -c '"$0" -m pip install --progress-bar off \
    --no-deps --no-compile --no-build-isolation -r "$1" >"$1.log" 2>&1' "$here/.venv/bin/python" || {
    grep -h -A 20 '^ *\(ERROR\|error\)' "$shares"/*.log || cat "$shares"/*.log
    return 1
  }
}

# Imports are compiled as they come; where they must not be, they would be compiled anew at every start.
check_venv() {
  "$here/.venv/bin/python" -m pip check
  local python=(env -u PYTHONDONTWRITEBYTECODE "$here/.venv/bin/python" -W ignore)
  xargs -L 1 -P "$(nproc)" "${python[@]}" -c 'import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]' <<'END'
    distributed distributed.deploy.local distributed.nanny jinja2 numpy pandas psutil pydantic rich.console rich.progress rich.table simpy typer yaml zstandard
    hypothesis matplotlib.pyplot mininet.net plotly.graph_objs._bar plotly.graph_objs._figure plotly.graph_objs._scatter plotly.offline plotly.subplots
    prometheus_client pyroute2 pytest scapy.layers.inet scapy.utils xdist.dsession
END
  "${python[@]}" -m compileall -qq -j 0 "$here"/.venv/lib/python*/site-packages/{_pytest,cryptography,narwhals,pydantic,pytest_benchmark,rich,typer}
  "${python[@]}" "$here/controllers/ryu_app/manager.py" --version
}

set_up_venv() {
  local python
  otherwise="Try an interpreter that lies elsewhere: HELIOGRAPH_PYTHON=/path/to/python3.12 ./heliograph setup"
  if [[ ! -w $here ]]; then
    say "cannot write $here/.venv as $(id -un). Remedy: run ./heliograph setup as $(stat -c %U "$here"), who owns the checkout, or with sudo"
    exit 1
  fi
  # what was imported under sudo was compiled by root, into folders of its own
  if [[ -e $here/.venv && $(id -u) != 0 && -n $(find "$here/.venv" -type d ! -writable -print -quit) ]]; then
    say "$here/.venv is out of date, and not all of it belongs to $(id -un). Remedy: sudo ./heliograph setup"
    exit 1
  fi
  if ! python=$(find_python); then
    if [[ $(id -u) == 0 && -z ${HELIOGRAPH_PYTHON:-} && -n $(command -v apt-get) ]]; then
      step "refreshing the package lists" "check the network and /etc/apt/sources.list*, then run: apt-get update" apt update
      step "installing python3-venv" "run: apt-get install python3-venv" apt install -y --no-install-recommends python3 python3-venv
    fi
    if ! python=$(find_python); then
      give_up "found no Python 3.10 to 3.13 with venv (looked at ${HELIOGRAPH_PYTHON:-/usr/bin/python3 and python3* on the path})" \
        "sudo apt-get install python3-venv, or name one: HELIOGRAPH_PYTHON=/path/to/python3.12 ./heliograph setup"
    fi
  fi
  otherwise="Try another Python, 3.10 to 3.13, than $("$python" -V 2>&1): HELIOGRAPH_PYTHON=/path/to/python ./heliograph setup"
  step "making .venv with $python ($("$python" -V 2>&1))" "rm -rf .venv and run: $python -m venv .venv" make_venv "$python"
  step "installing the build tools" "check that pip reaches its package index, then run ./heliograph setup" \
    pip setuptools wheel pbr
  step "installing the Python packages ($(grep -cE '^[A-Za-z]' "$here/requirements.txt") pinned, with what they need)" \
    "check that pip reaches its package index, then run ./heliograph setup" install_packages
  step "checking the environment" "rm -rf .venv and run ./heliograph setup" check_venv
  if [[ $(id -u) == 0 && $(stat -c %u "$here") != 0 ]]; then
    # sudo in somebody's checkout: the environment is theirs, so that they can renew it
    chown -R --no-dereference --reference="$here" "$here/.venv"
  fi
}

stamp() { # file: written whole or not at all, under a name that nobody can have laid a link at
  local new
  new=$(mktemp -- "$1.XXXXXXXX")
  fingerprint >"$new"
  chmod 644 "$new"
  if [[ $(id -u) == 0 ]]; then chown --no-dereference --reference="$here" "$new"; fi
  mv -fT "$new" "$1"
}

# --- in order, one set-up at a time --------------------------------------------------------------------------------------------------

exec 9<"$here"
if ! flock --nonblock 9; then
  say "waiting for another set-up of this checkout to end"
  flock 9
fi
began=$SECONDS
for part in "$@"; do
  case $part in
    system)
      if ! system_ready; then set_up_system; fi
      ;;
    venv)
      if ! venv_ready; then
        set_up_venv
        stamp "$venv_stamp"
      fi
      ;;
    *) say "scripts/setup.sh: unknown part '$part'; it knows: system, venv" && exit 2 ;;
  esac
done
# The system's stamp lies in .venv, which may just have been made.
if [[ " $* " == *" system "* ]] && [[ -d $here/.venv ]]; then stamp "$system_stamp"; fi
rm -f "$failure" || true
say "set-up took $((SECONDS - began)) s"
