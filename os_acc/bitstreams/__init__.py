# SPDX-License-Identifier: Apache-2.0

"""The file of a bitstream: opened safely, its format, its name."""
