# SPDX-License-Identifier: Apache-2.0

"""What a container runtime learns about an accelerator."""
