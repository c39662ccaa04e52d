# SPDX-License-Identifier: Apache-2.0

"""Nova's libvirt driver, with accelerators attached by os-acc."""
