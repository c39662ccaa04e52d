#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# The part of boot.py inside the machine: makes the root that the tests see,
# runs them, and leaves the exit code in the directory that boot.py shares.
#
# The root is the host's, read with a cache, which makes Python five times as
# fast, under a layer that is gone when the machine is: nothing in here writes
# to the host's file system but into the shared directory, which is /lab/out.
set -euo pipefail
# shellcheck source=/dev/null
source "$1/lab.env"

virtio=trans=virtio,version=9p2000.L,msize=512000
new=/run/lab/root
mkdir -p /run/lab/host /run/lab/layer "$new"
mount -t 9p -o "ro,cache=loose,$virtio" lab-root /run/lab/host
mount -t tmpfs -o mode=0755 lab-layer /run/lab/layer
mkdir /run/lab/layer/upper /run/lab/layer/work
mount -t overlay -o lowerdir=/run/lab/host \
    -o upperdir=/run/lab/layer/upper,workdir=/run/lab/layer/work lab "$new"
for each in dev proc sys; do
    mount --rbind "/$each" "$new/$each"
done
mount --bind /run "$new/run"

mkdir -p "$new/lab/out" "$new/lab/state" "$new/lab/tmp" "$new/lab/old"
mount -t 9p -o "$virtio" lab-out "$new/lab/out"
modprobe -a virtio_blk ext4
udevadm settle --timeout=60
mount /dev/disk/by-id/virtio-lab-state "$new/lab/state"
cd "$new"
pivot_root . lab/old
umount --lazy /lab/old
# udevadm takes the new root for a chroot, in which it would do nothing.
export SYSTEMD_IGNORE_CHROOT=1
# Processes of other users run this Python, and import from the project.
for each in "$(dirname "$LAB_PYTHON")" \
    "$(dirname "$(readlink -f "$LAB_PYTHON")")" "$LAB_CWD"; do
    while [[ $each != / ]]; do
        chmod a+rx "$each"
        each=$(dirname "$each")
    done
done

read -r up _ </proc/uptime
echo "lab: boot $OS_ACC_LAB_BOOT, kernel $(uname -r), up in $up s"
cd "$LAB_CWD"
# The guest lives: see watch.py. Each CPU must have its turn.
live() {
    local cpu up
    while true; do
        for ((cpu = 0; cpu < $(nproc); cpu++)); do
            taskset -c "$cpu" sleep 20
            read -r up _ </proc/uptime
            echo "$up" >/lab/out/alive
        done
    done
}
live &
alive=$!
mapfile -d '' -t arguments </lab/out/arguments
code=0
"$LAB_PYTHON" -m pytest "${arguments[@]}" || code=$?

kill "$alive" || true
cd /
dmesg >"/lab/out/dmesg.$OS_ACC_LAB_BOOT"
cp /lab/tmp/.coverage* /lab/out/ 2>/dev/null || true
umount /lab/state || { echo 'lab: a test left /lab/state in use'; code=1; }
# Whole or not at all: boot.py takes its absence for a crash.
echo "$code" >/lab/out/code.new
mv /lab/out/code.new /lab/out/code
