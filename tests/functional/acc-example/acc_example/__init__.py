# SPDX-License-Identifier: Apache-2.0

"""An example of a driver and a plugin of os-acc."""
