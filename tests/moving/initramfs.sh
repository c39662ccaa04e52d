#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0

# The first process of the machine of machine.py: mounts its root.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do
    $b insmod "/modules/$module"
done </modules/order
virtio=trans=virtio,version=9p2000.L,msize=512000
$b mkdir -p /host /layer
$b mount -t 9p -o "ro,cache=loose,$virtio" root /host
$b mount -t tmpfs layer /layer
$b mkdir /layer/upper /layer/work
$b mount -t overlay root /root \
    -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work
$b mkdir -p /root/moving
$b mount -t 9p -o "$virtio" moving /root/moving
exec $b switch_root /root /bin/bash /moving/init
