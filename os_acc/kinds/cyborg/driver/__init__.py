# SPDX-License-Identifier: Apache-2.0

"""The driver cyborg: devices that OpenStack Cyborg's drivers discover."""
