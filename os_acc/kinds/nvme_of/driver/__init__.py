# SPDX-License-Identifier: Apache-2.0

"""The driver nvme_of: namespaces of NVMe-oF targets."""
