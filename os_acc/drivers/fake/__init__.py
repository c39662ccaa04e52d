# SPDX-License-Identifier: Apache-2.0

"""The earlier place of the fake driver: see os_acc.kinds.fake."""
