# SPDX-License-Identifier: Apache-2.0

"""A hardware manager of ironic-python-agent that calls os-acc apply."""
