# SPDX-License-Identifier: Apache-2.0

"""Texts from people and for people: documents, UUIDs, secrets."""
