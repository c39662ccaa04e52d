#!/bin/bash
# SPDX-License-Identifier: Apache-2.0

# The part of machine.py inside the machine: mounts what initramfs.sh has not,
# runs the tests, and leaves the exit code in the shared directory.
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
for each in /dev/shm /run /tmp; do
    mount -t tmpfs -o mode=1777 tmpfs "$each"
done
exec </dev/null >/dev/ttyS0 2>&1
# shellcheck source=/dev/null
source /moving/lab.env
virtio=trans=virtio,version=9p2000.L,msize=512000,cache=loose
mkdir -p "$LAB_CWD"
mount -t 9p -o "ro,$virtio" project "$LAB_CWD"
mount -t 9p -o "ro,$virtio" packages /packages
ip link set lo up
hostname moving
modprobe kvm_amd nested=0
modprobe -a vfio_iommu_type1 mtty vfio_pci nvme
# The VFs of the only drive, for the guests of both hosts.
drive=/sys/bus/pci/devices/0000:01:00.0
echo 0 >$drive/sriov_drivers_autoprobe
echo 2 >$drive/sriov_numvfs

read -r up _ </proc/uptime
echo "lab: boot $OS_ACC_LAB_BOOT, kernel $(uname -r), up in $up s"
# The machine lives: see tests/lab/watch.py.
while sleep 20; do
    cat /proc/uptime >/moving/alive
done &
cd "$LAB_CWD"
mapfile -d '' -t arguments </moving/arguments
code=0
"$LAB_PYTHON" -m pytest "${arguments[@]}" || code=$?
dmesg >"/moving/dmesg.$OS_ACC_LAB_BOOT"
# Whole or not at all: its absence means that the machine has crashed.
echo "$code" >/moving/code.new
mv /moving/code.new /moving/code
sync
# One line, because no file can be read any more once the machine goes down.
echo o >/proc/sysrq-trigger; while :; do :; done
