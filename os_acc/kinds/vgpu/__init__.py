# SPDX-License-Identifier: Apache-2.0

"""vGPUs that are VFs with a vGPU type, such as NVIDIA's."""
