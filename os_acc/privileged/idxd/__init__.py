# SPDX-License-Identifier: Apache-2.0

"""Work queues of Intel DSA and IAA, as root."""
