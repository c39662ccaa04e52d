# SPDX-License-Identifier: Apache-2.0

"""Reading options, and the options of several packages."""
