#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Installs what boot.py needs: QEMU, a Debian kernel with its modules, and
# modules that Debian does not build: the kernel's sample mediated-device
# driver (with a parameter more, see mtty_parent.c), its simulated NIC
# (netdevsim), its drivers for FPGAs with a device feature list (DFL), and a
# simulated card for those drivers (see dfl/dfl_card.c). For Debian 12, as
# root.
#
#     tests/lab/install.sh            both parts
#     tests/lab/install.sh packages   only the part that calls apt: installs
#                                     packages, downloads kernel and source
#     tests/lab/install.sh build      only the rest: unpacks the kernel,
#                                     compiles the modules
#
# Do not call apt while "packages" runs; "build" takes no lock of apt. Parts
# that are installed already are not installed again. The script does not touch
# /boot, the boot loader or the machine's own kernel.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${OS_ACC_LAB_CACHE:-/var/cache/os-acc-lab}
downloads=$cache/downloads
export DEBIAN_FRONTEND=noninteractive PATH=$PATH:/usr/sbin:/sbin

say() { echo "lab: $*"; }

# Does not ask about changed configuration files, and waits if another apt is
# running.
apt_get() {
    apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
        -o Dpkg::Options::=--force-confdef \
        -o Dpkg::Options::=--force-confold "$@"
}

# Each name is asked for by itself: given several, "command -v" succeeds if it
# finds one of them.
tools_are_installed() {
    local tool
    for tool in qemu-system-x86_64 busybox modprobe udevadm mkfs.ext4 ip \
        libvirtd nvme podman qemu-img runc sudo useradd virsh virtlogd; do
        command -v "$tool" >/dev/null || return 1
    done
}

kernel_is_unpacked() {
    [[ -s $cache/release && -s $cache/vmlinuz ]] &&
        [[ -s /lib/modules/$(<"$cache/release")/modules.dep ]]
}

# The kernel's options for the DFL drivers, all of which are modules.
dfl_options() {
    printf 'CONFIG_%s=m\n' FPGA FPGA_BRIDGE FPGA_REGION FPGA_DFL FPGA_DFL_FME \
        FPGA_DFL_FME_MGR FPGA_DFL_FME_BRIDGE FPGA_DFL_FME_REGION \
        FPGA_DFL_AFU FPGA_DFL_PCI
}

# Says what the modules are built from: the kernel's release, and a checksum
# of the sources beside this script.
modules_wanted() {
    local release
    release=$(<"$cache/release")
    (cd "$here" && cat mtty_parent.c dfl/*) | sha256sum |
        sed "s/^/$release /"
}

modules_are_built() {
    [[ -s $cache/modules && $(<"$cache/modules") == "$(modules_wanted)" ]]
}

is_built() { kernel_is_unpacked && modules_are_built; }

# Says whether the archive has version $2 of package $1. grep -q would end
# before apt-cache, which would then fail with SIGPIPE.
offers() { apt-cache madison "$1" | grep -F " $2 " >/dev/null; }

# Prints the release and the version of the newest 6.1 kernel whose image,
# headers and source are in the archive in the same version.
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
    say 'the archive has no 6.1 kernel with headers and source' >&2
    return 1
}

packages() {
    local release version
    apt_get update
    apt_get install -y --no-install-recommends \
        busybox-static e2fsprogs gcc iproute2 kmod libc6-dev libvirt-clients \
        libvirt-daemon libvirt-daemon-driver-qemu make nvme-cli passwd \
        podman qemu-system-x86 qemu-utils runc sudo tar udev xz-utils
    if is_built; then
        return
    fi
    read -r release version < <(choose)
    say "kernel $release, version $version"
    apt_get install -y --no-install-recommends "linux-headers-$release"
    rm -rf "$downloads"
    mkdir -p "$downloads"
    # apt downloads as the user _apt, who must be able to write the directory.
    ! id _apt >/dev/null 2>&1 || chown _apt "$downloads"
    (
        cd "$downloads"
        apt_get download "linux-image-$release=$version" \
            "linux-source-6.1=$version"
    )
    # Written last, because this file means that the downloads are complete.
    echo "$release" >"$downloads/release"
}

# Compiles the module in the directory $1 of the build directory.
module() { # DIRECTORY OPTION...
    make -s -j2 -C "/usr/src/linux-headers-$release" "M=$work/$1" \
        "${@:2}" modules
    cp "$1"/*.ko "/lib/modules/$release/extra/"
}

build() {
    local release options
    release=$(<"$downloads/release")
    work=$(mktemp -d "$cache/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cd "$work"

    # Another machine that is booted now may be reading these files, so they
    # are not replaced without need.
    if ! kernel_is_unpacked || [[ $(<"$cache/release") != "$release" ]]; then
        say 'kernel and modules'
        dpkg -x "$downloads"/linux-image-*.deb image
        mkdir -p "/lib/modules/$release"
        cp -a "image/lib/modules/$release/." "/lib/modules/$release/"
        depmod "$release"
        cp "image/boot/vmlinuz-$release" "$cache/vmlinuz"
        # Written last, because this file means that the kernel is complete.
        echo "$release" >"$cache/release"
    fi

    say 'mtty, netdevsim, and the drivers of the FPGA card'
    dpkg --fsys-tarfile "$downloads"/linux-source-*.deb |
        tar -xO ./usr/src/linux-source-6.1.tar.xz |
        tar -xJ --strip-components=1 \
            linux-source-6.1/samples/vfio-mdev/mtty.c \
            linux-source-6.1/drivers/net/netdevsim \
            linux-source-6.1/drivers/fpga
    mkdir -p mtty "/lib/modules/$release/extra"
    mv samples/vfio-mdev/mtty.c mtty/mtty_sample.c
    cp "$here/mtty_parent.c" mtty/mtty.c
    echo 'obj-m := mtty.o' >mtty/Makefile
    cp -r "$here/dfl" dfl
    module mtty
    module drivers/net/netdevsim CONFIG_NETDEVSIM=m
    mapfile -t options < <(dfl_options)
    module drivers/fpga "${options[@]}"
    module dfl
    depmod "$release"
    rm -rf "$downloads"
    # Written last, because this file means that the modules are complete.
    modules_wanted >"$cache/modules"
}

part=${1:-all}
case $part in
all | packages | build) ;;
*)
    say "unknown part '$part': expected packages or build" >&2
    exit 2
    ;;
esac
if [[ $part != build ]]; then
    if ! tools_are_installed || {
        ! is_built && [[ ! -s $downloads/release ]]
    }; then
        packages
    fi
fi
if [[ $part != packages ]] && ! is_built; then
    build
fi
if is_built; then
    say "kernel $(<"$cache/release") is installed"
fi
