#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs a command as on another host, inside the namespaces of isolated.sh:
#
#     tests/openstack/another_host.sh NAME COMMAND...
#
# The command has a host name and directories of libvirt of its own. All else,
# such as the network, is shared with the first host.
set -euo pipefail

if [[ ${1:-} != --inside ]]; then
    exec unshare --mount --propagation private --uts "$0" --inside "$@"
fi
name=$2
shift 2

mkdir -p /run/libvirt
for directory in /run/libvirt /var/{lib,cache,log}/libvirt; do
    mount -t tmpfs -o mode=755,size=4g tmpfs "$directory"
done
# The new directory has the same configuration, but not the first host's guests.
files=$OS_ACC_OPENSTACK_DIR/$name-libvirt
mkdir "$files"
cp /etc/libvirt/{libvirtd,qemu}.conf "$files"
mount --bind "$files" /etc/libvirt

echo "$name" >/proc/sys/kernel/hostname
# libvirtd takes the first name of the first line that has the host's name.
{ echo "127.0.0.1 $name" && cat /etc/hosts; } >"$files/hosts"
mount --bind "$files/hosts" /etc/hosts
exec "$@"
