#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Builds what machine.py boots: a Debian 13 with its kernel, QEMU and libvirt,
# in a directory of the cache. Debian 12 has no QEMU that migrates a guest with a
# VFIO device (8.1 or later). Two modules are compiled:
#
# * mtty, the kernel's sample of mediated devices with migration, which Debian
#   does not build;
# * vfio.ko with the part that reports dirty pages to QEMU. Debian builds it
#   without, and then QEMU refuses to migrate any VFIO device.
#
# As root, on Debian. "packages" installs what the building needs, "build" builds
# only, and without an argument it does both. What is there already is not built
# again. To build all of it anew, remove the directory.
set -euo pipefail
cache=${OS_ACC_MOVING_CACHE:-/var/cache/os-acc-moving}
root=$cache/root
export DEBIAN_FRONTEND=noninteractive INITRD=No PATH=$PATH:/usr/sbin:/sbin

say() { echo "moving: $*"; }

install_tools() {
    local tool
    for tool in mmdebstrap busybox modprobe cpio xz; do
        command -v "$tool" >/dev/null || {
            apt-get update -q
            apt-get -q -y -o DPkg::Lock::Timeout=300 install \
                --no-install-recommends \
                mmdebstrap busybox-static kmod cpio xz-utils
            return
        }
    done
}

# Its own apt: this machine's is not locked. Without the second QEMU, because
# libvirtd takes long to ask each of them what it can.
make_root() {
    local mirror
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' \
        'Origin: Debian' 'Label: Debian' | sort -u | head -n 1)
    [[ -n $mirror ]] || {
        say 'apt has no source of Debian on this machine' >&2
        exit 1
    }
    rm -rf "$root"
    mmdebstrap --mode=root --variant=apt --format=directory \
        --aptopt='APT::Install-Recommends "false"' \
        --aptopt='APT::Sandbox::User "root"' \
        --dpkgopt='path-exclude=/usr/bin/qemu-system-i386' \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --include=busybox-static,iproute2,kmod,libvirt-clients \
        --include=libvirt-daemon,libvirt-daemon-driver-qemu \
        --include=libvirt-daemon-lock,libvirt-daemon-log,procps \
        --include=python3,python3-libvirt,qemu-system-x86,udev \
        trixie "$root" "$mirror"
    # Where machine.py mounts what it shares.
    mkdir "$root/moving" "$root/packages"
}

# Kernel, headers and compiler go into a copy, so that the root stays small.
build_modules() {
    local build=$work/build release each
    cp -a --reflink=auto "$root" "$build"
    mount --bind /proc "$build/proc"
    cp /etc/resolv.conf "$build/etc/resolv.conf"
    chroot "$build" apt-get -q update
    chroot "$build" apt-get -q -y install --no-install-recommends \
        gcc make libc6-dev linux-headers-amd64 linux-image-amd64
    release=$(basename "$build"/usr/lib/modules/*-amd64)
    mkdir "$build/src"
    chroot "$build" sh -c 'cd /src && apt-get -q download linux-source-6.12'
    dpkg --fsys-tarfile "$build"/src/linux-source-*.deb |
        tar -xO ./usr/src/linux-source-6.12.tar.xz |
        tar -xJ -C "$build/src" --strip-components=1 \
            linux-source-6.12/samples/vfio-mdev/mtty.c \
            linux-source-6.12/drivers/vfio \
            linux-source-6.12/drivers/iommu/iommufd/iova_bitmap.c
    mv "$build/src/drivers/iommu/iommufd/iova_bitmap.c" \
        "$build/src/drivers/vfio/"
    echo 'obj-m := mtty.o' >"$build/src/samples/vfio-mdev/Makefile"
    # Without this option, its iova_bitmap functions answer EOPNOTSUPP.
    cat >"$build/src/drivers/vfio/Makefile" <<'END'
obj-m := vfio.o
vfio-y := vfio_main.o group.o container.o virqfd.o iova_bitmap.o
ccflags-y := -DCONFIG_IOMMUFD_DRIVER=1
END
    mkdir -p "$root/usr/lib/modules"
    cp -a "$build/usr/lib/modules/$release" "$root/usr/lib/modules/"
    # depmod prefers the directory updates.
    mkdir -p "$root/usr/lib/modules/$release/updates"
    for each in samples/vfio-mdev drivers/vfio; do
        chroot "$build" make -s -C "/usr/src/linux-headers-$release" \
            "M=/src/$each" modules
        chroot "$build" sh -c "strip --strip-debug /src/$each/*.ko"
        cp "$build/src/$each"/*.ko "$root/usr/lib/modules/$release/updates/"
    done
    depmod -b "$root" "$release"
    # Written last, because this file means that the modules are complete.
    cp "$build/boot/vmlinuz-$release" "$root/boot/vmlinuz"
    umount "$build/proc"
}

# Mounts the root, which machine.py shares, under a layer that stays in memory.
make_initramfs() {
    local each release
    release=$(basename "$root"/usr/lib/modules/*-amd64)
    mkdir -p "$work/initramfs"/{bin,dev,proc,sys,modules,root}
    cp "$root/usr/bin/busybox" "$work/initramfs/bin/"
    install -m 755 "$here/initramfs.sh" "$work/initramfs/init"
    modprobe -d "$root" -S "$release" --show-depends --all \
        virtio_pci 9p 9pnet_virtio overlay |
        awk '$1 == "insmod" && !seen[$2]++ {print $2}' |
        while read -r each; do
            xz -dc "$each" >"$work/initramfs/modules/$(basename "$each" .xz)"
            basename "$each" .xz >>"$work/initramfs/modules/order"
        done
    (cd "$work/initramfs" && find . | cpio -o -H newc --quiet) |
        gzip -1 >"$work/initramfs.gz"
    mv "$work/initramfs.gz" "$cache/initramfs"
}

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$cache"
[[ ${1:-} == build ]] || install_tools
[[ ${1:-} != packages ]] || exit 0
# Another process may be building it.
exec 9> "$cache/lock"
flock 9
work=$(mktemp -d "$cache/work.XXXXXX")
finish() {
    umount "$work/build/proc" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap finish EXIT
[[ -e $root/usr/bin/qemu-system-x86_64 ]] || make_root
[[ -s $root/boot/vmlinuz ]] || build_modules
make_initramfs
say "the machine is in $cache"
