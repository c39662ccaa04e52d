# SPDX-License-Identifier: Apache-2.0

"""The state that this host's devices shall have, in one document.

The modules are: documents (reads and checks one), places (where a key is in a
file), offered, reservations, vfs, partitions, vgpus, work_queues, mdevs,
functions and pools (the parts of a document, each with its steps), filling
(what a pool programs next), applying (does the steps), and export (the
document of today's state).
"""
