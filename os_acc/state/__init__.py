# SPDX-License-Identifier: Apache-2.0

"""The files of a state path, and who may use them."""
