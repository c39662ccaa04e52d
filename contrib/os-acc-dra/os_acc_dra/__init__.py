# SPDX-License-Identifier: Apache-2.0

"""A driver of Kubernetes' Dynamic Resource Allocation (DRA) on os-acc.

A ResourceClaim is an instance of os-acc: its UID is the instance's UUID. The
journal of os-acc is the only state: this package has no checkpoint of its own.
"""

#: The owner of the VANs of this driver: see os_acc.initialize().
OWNER = 'os-acc-dra'
