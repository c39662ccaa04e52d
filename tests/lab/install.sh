#!/usr/bin/env bash
# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

# Puts onto this machine what boot.py needs: QEMU, a Debian kernel with its
# modules, and the kernel's sample mediated-device driver. For Debian 12, as
# root. What is there already is left alone, so it is fast the second time.
#
# /boot, the boot loader and the machine's own kernel are not touched.
set -euo pipefail
cache=${OS_ACC_LAB_CACHE:-/var/cache/os-acc-lab}
export DEBIAN_FRONTEND=noninteractive PATH=$PATH:/usr/sbin:/sbin

say() { echo "lab: $*"; }

done_already() {
    [[ -s $cache/release && -s $cache/vmlinuz ]] || return 1
    local release
    release=$(<"$cache/release")
    [[ -s /lib/modules/$release/modules.dep ]] &&
        [[ -s /lib/modules/$release/extra/mtty.ko ]] &&
        command -v qemu-system-x86_64 busybox modprobe udevadm \
            mkfs.ext4 ip libvirtd sudo useradd virsh virtlogd >/dev/null
}

# Not grep -q: it would leave apt-cache with a broken pipe, a failure.
offers() { apt-cache madison "$1" | grep -F " $2 " >/dev/null; }

# The newest 6.1 kernel of which the image, the headers and the source are all
# in the archive, of one and the same version. Prints release and version.
choose() {
    local headers release version
    for headers in $(apt-cache pkgnames linux-headers-6.1.0- |
        grep -E '^linux-headers-6\.1\.0-[0-9]+-amd64$' | sort --reverse -V); do
        release=${headers#linux-headers-}
        version=$(apt-cache show --no-all-versions "$headers" 2>/dev/null |
            sed -n 's/^Version: //p')
        if [[ -n $version ]] &&
            offers "linux-image-$release" "$version" &&
            offers linux-source-6.1 "$version"; then
            echo "$release $version"
            return
        fi
    done
    say 'no 6.1 kernel with headers and source in the archive' >&2
    return 1
}

if done_already; then
    say "kernel $(<"$cache/release") is there"
    exit
fi
mkdir -p "$cache"
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
# apt downloads as its own user.
chmod 755 "$work"
! id _apt >/dev/null 2>&1 || chown _apt "$work"

apt-get update -q
read -r release version < <(choose)
say "kernel $release, version $version"
apt-get install -y -q --no-install-recommends \
    busybox-static e2fsprogs gcc iproute2 kmod libvirt-clients \
    libvirt-daemon libvirt-daemon-driver-qemu "linux-headers-$release" make \
    passwd qemu-system-x86 sudo tar udev xz-utils

cd "$work"
apt-get download -q "linux-image-$release=$version" \
    "linux-source-6.1=$version"

say 'kernel and modules'
dpkg -x linux-image-*.deb image
mkdir -p "/lib/modules/$release/extra"
cp -a "image/lib/modules/$release/." "/lib/modules/$release/"

say 'mtty'
mkdir mtty
dpkg --fsys-tarfile linux-source-*.deb |
    tar -xO ./usr/src/linux-source-6.1.tar.xz |
    tar -xJO linux-source-6.1/samples/vfio-mdev/mtty.c >mtty/mtty.c
echo 'obj-m := mtty.o' >mtty/Makefile
make -C "/usr/src/linux-headers-$release" "M=$work/mtty" modules
cp mtty/mtty.ko "/lib/modules/$release/extra/"
depmod "$release"

cp "image/boot/vmlinuz-$release" "$cache/vmlinuz"
# Last, as it says that all of the above is there.
echo "$release" >"$cache/release"
