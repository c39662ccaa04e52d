# SPDX-License-Identifier: Apache-2.0

"""One folder for each kind of device, with all that only this kind needs."""
