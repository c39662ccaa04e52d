# SPDX-License-Identifier: Apache-2.0

"""All that runs as root: narrow calls, made through oslo.privsep."""
