# SPDX-License-Identifier: Apache-2.0

"""Translation of the texts of errors."""

import oslo_i18n

_translators = oslo_i18n.TranslatorFactory(domain='os_acc')

_ = _translators.primary
