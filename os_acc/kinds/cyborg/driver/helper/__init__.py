# SPDX-License-Identifier: Apache-2.0

"""The process in which OpenStack Cyborg's drivers run.

``__main__`` imports only Cyborg and the standard library, and nothing of
os-acc. It is run by its path, so that Cyborg, with SQLAlchemy and eventlet,
can be installed in another Python environment than os-acc.
"""
