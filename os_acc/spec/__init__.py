# SPDX-License-Identifier: Apache-2.0

"""The option device_spec: what the operator offers."""
