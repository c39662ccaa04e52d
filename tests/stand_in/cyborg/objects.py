# SPDX-License-Identifier: Apache-2.0

"""As cyborg.objects."""


def register_all() -> None:
    pass
