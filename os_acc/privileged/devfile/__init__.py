# SPDX-License-Identifier: Apache-2.0

"""Device files, as root."""
