#!/usr/bin/env bash
# What `vagrant up` runs in the machine, as root: ./heliograph setup, as everywhere. Its exit status and output are vagrant's.
set -euo pipefail
checkout=$1

# Behind a TLS-inspecting network, HELIOGRAPH_VM_CA_BUNDLE names the certificates to trust; one file may hold many of them.
if [[ -s /tmp/heliograph-ca.pem ]]; then
  bundle=/etc/ssl/certs/heliograph-ca.pem
  install -m 644 /tmp/heliograph-ca.pem "$bundle"
  export PIP_CERT=$bundle SSL_CERT_FILE=$bundle
fi

# The folder that the host shares has the host's owners: root of this machine may write there all the same (outputs/place.py).
shared=$(readlink -f "$checkout/results/runs" || true)
if [[ -n $shared ]] && mountpoint -q "$shared"; then
  install -d -m 755 /etc/heliograph
  printf '%s\n' "$shared" >/etc/heliograph/shares
  chmod 644 /etc/heliograph/shares
fi

cd "$checkout"
exec ./heliograph setup
