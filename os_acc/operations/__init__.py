# SPDX-License-Identifier: Apache-2.0

"""Operations on the whole host: discovery, preview, recovery."""
