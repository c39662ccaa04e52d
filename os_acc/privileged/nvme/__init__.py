# SPDX-License-Identifier: Apache-2.0

"""A small NVMe driver in user space, to empty a drive between two tenants.

References such as "Base 3.5.1" are to sections of the NVM Express Base
Specification, revision 2.0c; "NVM 3.2.4" is the NVM Command Set
Specification, revision 1.0c.
"""
