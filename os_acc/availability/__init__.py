# SPDX-License-Identifier: Apache-2.0

"""May a device be taken now, and if not, why? What the host itself uses."""
