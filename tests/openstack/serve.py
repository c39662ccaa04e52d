# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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
