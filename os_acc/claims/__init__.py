# SPDX-License-Identifier: Apache-2.0

"""Who has which device, and who excludes whom: one rule for all kinds.

A VAN claims resources, which form a tree: see conflict. Each kind says which
ones its attach handle claims, see of_handle, and how it is refused, see words.
conflict says which VANs exclude which. Facts of the host come in as one
object: see facts and reader.

allocated.Holders has what the journal knows, and its in_the_way() says who
excludes a VAN. The privileged half has os_acc.privileged.noted for this.
"""
