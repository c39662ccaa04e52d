# SPDX-License-Identifier: Apache-2.0

"""Device files, such as /dev/dri/renderD128."""
