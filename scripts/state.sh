# What is set up already? Sourced by ./heliograph and scripts/setup.sh; reads only, and starts next to nothing: every call pays for it.
# Expects $here, the checkout.

venv_stamp="$here/.venv/.heliograph-venv"     # written last: an environment without it, or with an older one, is built anew
system_stamp="$here/.venv/.heliograph-system"

# Binaries a run or a probe starts. A stamp does not outlive an `apt remove`, so they are looked up on every call.
needed_binaries=(ovsdb-server ovs-vswitchd ovsdb-tool ovs-vsctl ovs-ofctl ovs-appctl mnexec ip tc ethtool ping tcpdump nsenter sysctl)

missing_binaries() {
  local binary found=""
  for binary in "${needed_binaries[@]}"; do
    command -v "$binary" >/dev/null || found+="${found:+ }$binary"
  done
  printf '%s' "$found"
}

# One line that changes when the environment must be built anew: the pins, the recipe, this system and the interpreter behind .venv.
fingerprint() {
  local digest rest
  read -r digest rest < <(cat "$here"/{requirements,constraints}.txt "$here"/scripts/{setup,state}.sh "$here/scripts/ryu_build/sitecustomize.py" \
    /etc/os-release | sha256sum)
  printf '%s %s %s' "$digest" "$HOSTTYPE" "$(readlink -f -- "$here/.venv/bin/python")"
}

stamped() { # file: does it hold the fingerprint of now?
  [[ -r $1 && $(<"$1") == "$(fingerprint)" ]]
}

venv_ready() { [[ -x $here/.venv/bin/python ]] && stamped "$venv_stamp"; }

system_ready() { [[ -z $(missing_binaries) ]] && stamped "$system_stamp"; }
