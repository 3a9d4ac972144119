#!/usr/bin/env bash
# Unpacks QEMU, a stock Debian kernel and a static busybox into a folder: what tests/vm boots. Nothing is installed on this machine.
#
#   scripts/vm/fetch.sh FOLDER        FOLDER gets tools/ (a tree of programs and libraries), kernel/ (vmlinuz, lib/modules) and "ready"
#
# Exit status 0: there (a later call does nothing); 3: this machine cannot have them, with the reason on stderr; anything else: a fault.
set -euo pipefail

folder=$(mkdir -p "$1" && cd "$1" && pwd -P)
export LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH="$PATH:/usr/sbin:/sbin"

cannot() {
  echo "fetch.sh: $*" >&2
  exit 3
}

[[ -e $folder/ready ]] && exit 0
exec 9<"$folder"
flock 9 # of two that ask at once, one fetches
[[ -e $folder/ready ]] && exit 0

for program in apt-get apt-cache dpkg-deb depmod; do
  command -v "$program" >/dev/null || cannot "$program is not here: the VM is made from Debian's packages"
done
[[ $(dpkg --print-architecture) == amd64 ]] || cannot "built for amd64, this is $(dpkg --print-architecture)"

# Only what this machine lacks is fetched; the libraries it has are used from where they are. No lock: nothing is installed.
apt() { apt-get -q -o Debug::NoLocking=true -o Acquire::Retries=3 "$@"; }
fetch() { # into, packages...
  local into=$1
  shift
  mkdir -p "$into/partial"
  apt install -y --download-only --no-install-recommends --reinstall -o Dir::Cache::archives="$into" "$@"
}
latest_kernel() { apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*-amd64\)$/\1/p' | head -n 1; }

rm -rf "$folder"/{archives,tools,kernel}
mkdir -p "$folder"/{archives,kernel-archive,tools,kernel}
[[ -n $(latest_kernel) ]] || apt update >&2 || cannot "the package lists cannot be refreshed"
kernel=$(latest_kernel)
[[ -n $kernel ]] || cannot "no package linux-image-amd64 in this system's lists: it needs Debian's"
# QEMU looks for its modules and firmware beside its own binary: those packages too, where this machine has them installed
programs=(qemu-system-x86 qemu-system-common qemu-system-data seabios busybox-static)
# A list that is older than the archive names files that have gone.
fetch "$folder/archives" "${programs[@]}" >&2 || { apt update >&2 && kernel=$(latest_kernel) && fetch "$folder/archives" "${programs[@]}" >&2; } ||
  cannot "QEMU cannot be fetched"
(cd "$folder/kernel-archive" && apt download "$kernel" >&2) || cannot "$kernel cannot be fetched"

for package in "$folder"/archives/*.deb; do dpkg-deb -x "$package" "$folder/tools"; done
# of the drivers only those of emulated devices and links: the rest is most of it
dpkg-deb --fsys-tarfile "$folder"/kernel-archive/*.deb | tar -x -C "$folder/kernel" --wildcards --no-wildcards-match-slash './boot/vmlinuz-*' './lib/modules/*/modules.*' \
  './lib/modules/*/kernel/'{arch,crypto,fs,lib,net}'/*' './lib/modules/*/kernel/drivers/'{net/*.ko,virtio/*}
release=$(basename "$folder"/kernel/lib/modules/*)
mv "$folder/kernel/boot/vmlinuz-$release" "$folder/kernel/vmlinuz"
rm -rf "$folder"/{archives,kernel-archive} "$folder"/kernel/{boot,usr}
depmod -b "$folder/kernel" "$release"
echo "$release" >"$folder/ready"
