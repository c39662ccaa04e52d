#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs a command in namespaces of its own, as root:
#
#     tests/openstack/isolated.sh COMMAND...
#
# * network: only a loopback interface, so that the standard ports of OpenStack
#   are free and nothing can be reached from outside;
# * mounts: /run and the directories of libvirt are empty. They are kept in memory;
# * processes: when the command ends, or this script is killed, the kernel
#   ends all processes that the command has started, guests included;
# * the host name is os-acc-node.
#
# The temporary directory for the command is in OS_ACC_OPENSTACK_DIR.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin

if [[ ${1:-} != --inside ]]; then
    exec unshare --mount --propagation private --pid --fork --kill-child \
        --mount-proc --net --uts --ipc "$0" --inside "$@"
fi
shift

for directory in /run /etc/libvirt /var/{lib,cache,log}/libvirt; do
    mkdir -p "$directory"
    mount -t tmpfs -o mode=755,size=4g tmpfs "$directory"
done
export OS_ACC_OPENSTACK_DIR=/run/os-acc-openstack
mkdir "$OS_ACC_OPENSTACK_DIR"

# libvirt reports the canonical name of the host. It must be the name that
# Nova and Cyborg have in their configurations.
echo os-acc-node >/proc/sys/kernel/hostname
echo '127.0.0.1 localhost os-acc-node' >"$OS_ACC_OPENSTACK_DIR/hosts"
mount --bind "$OS_ACC_OPENSTACK_DIR/hosts" /etc/hosts

# The default user and group of QEMU must exist for libvirtd, although the
# tests configure another user. A package that is not installed creates them.
with_qemu_user() { # FILE LINE...: hides FILE behind a copy with these lines
    local file=$1 copy=$OS_ACC_OPENSTACK_DIR/${1##*/} line
    cp "$file" "$copy"
    for line in "${@:2}"; do
        grep -q "^${line%%:*}:" "$copy" || echo "$line" >>"$copy"
    done
    mount --bind "$copy" "$file"
}
with_qemu_user /etc/passwd \
    'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin'
with_qemu_user /etc/group 'libvirt-qemu:x:64055:' 'kvm:x:64056:'
ip link set lo up

# No exec: this shell is process 1 here, which must collect the exit status of
# processes whose parents have ended.
status=0
"$@" || status=$?
exit "$status"
