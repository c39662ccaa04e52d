#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs a command with mounts of its own, as root:
#
#     tests/dra/isolated.sh COMMAND...
#
# /run and the directory of os-acc's privileged half are empty and in memory, so
# that neither a container runtime nor an os-acc of this host is touched. The
# processes are those of the host: os-acc must see who has a device open.
set -euo pipefail

if [[ ${1:-} != --inside ]]; then
    exec unshare --mount --propagation private "$0" --inside "$@"
fi
shift

for directory in /run /var/lib/os-acc-root; do
    mkdir -p "$directory"
    mount -t tmpfs -o mode=755,size=2g tmpfs "$directory"
done
# On some machines, not even root can look into process 1. It has no device.
readlink /proc/1/root >/dev/null || mount -t tmpfs none /proc/1
exec "$@"
