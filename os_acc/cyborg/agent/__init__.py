# SPDX-License-Identifier: Apache-2.0
"""os-acc's devices for the Cyborg agent. Only this package imports Cyborg."""
