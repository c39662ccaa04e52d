# SPDX-License-Identifier: Apache-2.0

"""As cyborg.privsep."""


class _Context:
    def set_client_mode(self, enabled: bool) -> None:
        pass


sys_admin_pctxt = _Context()
