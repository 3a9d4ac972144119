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

cd "$checkout"
exec ./heliograph setup
