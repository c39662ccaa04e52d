#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Downloads what tests/dra/pods needs beside runc: containerd 2 and a static
# busybox, from Debian sid. Debian 12 has only containerd 1.6, which knows no
# CDI. Nothing is installed, and apt's lists of the host stay as they are.
set -euo pipefail
cache=${OS_ACC_DRA_CACHE:-/var/cache/os-acc-dra}

if [[ -x $cache/root/usr/bin/containerd && -x $cache/root/usr/bin/busybox ]]
then
    exit 0
fi
mkdir -p "$cache"/{apt/lists/partial,apt/archives/partial,debs,root}
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' \
    'Origin: Debian' 'Label: Debian' | sort -u | head -n 1)
if [[ -z $mirror ]]; then
    echo 'apt has no source of Debian on this host' >&2
    exit 1
fi
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror sid main" >"$cache/apt/sources.list"
cat >"$cache/apt/apt.conf" <<END
Dir::Etc::SourceList "$cache/apt/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$cache/apt/lists";
Dir::Cache "$cache/apt";
APT::Sandbox::User "root";
Acquire::Retries "3";
END
export APT_CONFIG=$cache/apt/apt.conf
apt-get update -qq
cd "$cache/debs"
apt-get download -qq containerd busybox-static
for package in ./*.deb; do
    dpkg -x "$package" "$cache/root"
done
rm -rf "$cache"/{apt,debs}
