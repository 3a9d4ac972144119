#!/usr/bin/env bash
# Builds a Vagrant box of Debian 12 for libvirt from Debian's packages, for tests/vm/test_chain.py. Root; a few minutes.
#
#   scripts/vm/box.sh BOX PUBLIC_KEY        BOX: the file to write; PUBLIC_KEY: who may log in as `vagrant`
set -euo pipefail
umask 022
box=$(realpath "$1") key=$(realpath "$2")
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C

for program in mmdebstrap mkfs.ext4 sfdisk qemu-img qemu-system-x86_64; do
  command -v "$program" >/dev/null || { echo "box.sh: $program is not here: apt-get install mmdebstrap e2fsprogs fdisk qemu-utils qemu-system-x86" >&2; exit 3; }
done
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root size_mib=6144

step() { echo "box.sh: $* ($SECONDS s)" >&2; }

step "a Debian with a kernel, SSH and sudo"
cat >"$work/customise" <<'CUSTOMISE'
set -eu
chroot "$1" useradd --create-home --shell /bin/bash vagrant
install -d -m 700 -o 1000 -g 1000 "$1/home/vagrant/.ssh"
install -m 600 -o 1000 -g 1000 "$2" "$1/home/vagrant/.ssh/authorized_keys"
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$1/etc/sudoers.d/vagrant"
chmod 440 "$1/etc/sudoers.d/vagrant"
echo 'UseDNS no' >"$1/etc/ssh/sshd_config.d/vagrant.conf"
printf '[Match]\nName=e*\n[Network]\nDHCP=yes\n' >"$1/etc/systemd/network/80-dhcp.network"
chroot "$1" systemctl enable systemd-networkd systemd-resolved serial-getty@ttyS0 >/dev/null 2>&1
echo '/dev/vda1 / ext4 errors=remount-ro 0 1' >"$1/etc/fstab"
printf 'GRUB_CMDLINE_LINUX="console=ttyS0"\nGRUB_TIMEOUT=0\n' >>"$1/etc/default/grub"
printf '#!/bin/sh\nset -e\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin\nfor kind in proc:/proc sysfs:/sys devtmpfs:/dev; do\n  mountpoint -q "${kind#*:}" || mount -t "${kind%%:*}" none "${kind#*:}"\ndone\ngrub-install /dev/vda && update-grub && echo "box.sh: grub is installed"\nrm /usr/local/sbin/install-grub\nsync; echo u >/proc/sysrq-trigger; sleep 1; echo o >/proc/sysrq-trigger; sleep 60\n' >"$1/usr/local/sbin/install-grub"
chmod 755 "$1/usr/local/sbin/install-grub"
CUSTOMISE
mmdebstrap --quiet --variant=important --dpkgopt=force-unsafe-io \
  --include=linux-image-amd64,grub-pc,openssh-server,sudo,systemd-sysv,systemd-resolved,dbus,rsync,ca-certificates,procps \
  --customize-hook="sh '$work/customise' \"\$1\" '$key'" bookworm "$root"

step "its disk"
cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
cp "$root"/boot/initrd.img-* "$work/initrd"
truncate -s "${size_mib}M" "$work/disk"
echo 'start=2048, type=83, bootable' | sfdisk --quiet "$work/disk"
mkfs.ext4 -q -L root -d "$root" "$work/partition" "$((size_mib - 2))M"
dd if="$work/partition" of="$work/disk" bs=1M seek=1 conv=notrunc,sparse status=none
rm -rf --one-file-system "$root" "$work/partition"

step "one boot, to install GRUB"
timeout 1200 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nodefaults -display none -no-reboot -serial stdio \
  -kernel "$work/vmlinuz" -initrd "$work/initrd" -append "root=/dev/vda1 rw console=ttyS0 quiet panic=-1 init=/usr/local/sbin/install-grub" \
  -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" </dev/null | tee "$work/console" >&2
grep -q "box.sh: grub is installed" "$work/console" || { echo "box.sh: GRUB was not installed: see the console above" >&2; exit 1; }

step "the box"
qemu-img convert -O qcow2 "$work/disk" "$work/box.img"
echo "{\"provider\": \"libvirt\", \"format\": \"qcow2\", \"virtual_size\": $((size_mib / 1024))}" >"$work/metadata.json"
echo 'Vagrant.configure("2") { |config| config.vm.provider(:libvirt) { |machine| machine.disk_bus = "virtio" } }' >"$work/Vagrantfile"
tar -C "$work" --sparse -I 'gzip -1' -cf "$box" metadata.json Vagrantfile box.img
step "done: $(du -h "$box" | cut -f1)"
