# SPDX-License-Identifier: Apache-2.0

"""Serves a WSGI application on the loopback interface.

Usage: python serve.py MODULE:ATTRIBUTE PORT [ARGUMENT...]

The application sees the arguments as its command line.
"""

from __future__ import annotations

import importlib
import sys

import waitress


def main() -> None:
    module, _, attribute = sys.argv[1].partition(':')
    port = sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    application = getattr(importlib.import_module(module), attribute)
    waitress.serve(application, listen=f'127.0.0.1:{port}', threads=8)


if __name__ == '__main__':
    main()
