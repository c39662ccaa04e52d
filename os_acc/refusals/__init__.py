# SPDX-License-Identifier: Apache-2.0

"""Why a device is refused, in words: each refusal once."""
