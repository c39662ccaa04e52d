#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Installs the system packages that "tox -e openstack" needs, as root, on
# Debian 12 or Ubuntu 24.04. Asks no questions. Packages that are installed
# already stay as they are.
#
# The guests need a kernel. If neither the lab (tests/lab/install.sh) nor the
# machine has one, this script downloads a package with a kernel, and copies
# the kernel out of it. The package is not installed.
set -euo pipefail
cache=${OS_ACC_OPENSTACK_CACHE:-/var/cache/os-acc-openstack}
lab=${OS_ACC_LAB_CACHE:-/var/cache/os-acc-lab}
export DEBIAN_FRONTEND=noninteractive

say() { echo "openstack: $*"; }

# Does not ask about changed configuration files, and waits if another apt is
# running.
apt_get() {
    apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
        -o Dpkg::Options::=--force-confdef \
        -o Dpkg::Options::=--force-confold "$@"
}

has_kernel() {
    local each
    for each in "$cache/vmlinuz" "$lab/vmlinuz" /boot/vmlinuz-*; do
        [[ ! -r $each ]] || return 0
    done
    return 1
}

# Prints the package with the kernel that is made for virtual machines.
kernel_package() {
    local meta=linux-image-virtual
    if apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1; then
        meta=linux-image-cloud-amd64
    fi
    apt-cache depends "$meta" |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1
}

kernel() {
    local package
    package=$(kernel_package)
    say "kernel of $package"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # apt downloads as the user _apt, who must be able to write the directory.
    ! id _apt >/dev/null 2>&1 || chown _apt "$work"
    (cd "$work" && apt_get download "$package")
    dpkg -x "$work"/*.deb "$work/image"
    mkdir -p "$cache"
    cp "$work"/image/boot/vmlinuz-* "$cache/vmlinuz.new"
    mv "$cache/vmlinuz.new" "$cache/vmlinuz"
}

apt_get update
# With RUNLEVEL=1, invoke-rc.d does not start the service of RabbitMQ.
RUNLEVEL=1 apt_get install -y --no-install-recommends \
    busybox-static gcc iproute2 libc6-dev libvirt-daemon \
    libvirt-daemon-driver-qemu libvirt-dev mariadb-client-core \
    mariadb-server-core pkg-config python3-dev python3-venv \
    qemu-system-x86 qemu-utils rabbitmq-server util-linux
has_kernel || kernel
