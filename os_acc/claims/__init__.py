# SPDX-License-Identifier: Apache-2.0

"""Who has which device, and who excludes whom: one rule for all kinds.

A VAN claims resources, which form a tree: see resource. Each kind says which
ones its attach handle claims: see of_handle. conflict says which VANs exclude
which. Facts of the host come in as one object: see facts and reader.

The drivers ask this package in os_acc.attach.exclusion, and the privileged
half in os_acc.privileged.noted.
"""
