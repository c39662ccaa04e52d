# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The handle versions that this host's plugins and drivers support."""

from __future__ import annotations

from collections.abc import Collection

from oslo_utils import versionutils
from oslo_versionedobjects import fields as ovo_fields

from os_acc import exception
from os_acc import objects
from os_acc.objects import base


def _versions(name: str) -> list[str]:
    """Return the registered versions of a handle class, highest first.

    :raises UnsupportedHandle: if there is no such class
    """
    registry = base.VersionedObjectRegistry.obj_classes()
    if name not in registry:
        objects.register_all()
    versions = [cls.VERSION for cls in registry.get(name, [])]
    if not versions:
        raise exception.UnsupportedHandle(
            taker='os-acc', handle=name, takes='registered handle classes only'
        )
    return versions


@base.VersionedObjectRegistry.register
class HostHandleInfo(base.VersionedObject):
    """An attach handle class and the versions of it that are understood."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'handle_object_name': ovo_fields.StringField(),
        'min_version': ovo_fields.StringField(),
        'max_version': ovo_fields.StringField(),
    }

    @classmethod
    def of(cls, name: str) -> HostHandleInfo:
        """Describe the versions of a handle class that this os-acc supports.

        They are all minor versions up to the registered one.

        :param name: such as 'PCIHandle'
        :raises UnsupportedHandle: if there is no such class
        """
        newest = _versions(name)[0]
        oldest = newest.partition('.')[0] + '.0'
        return cls(
            handle_object_name=name, min_version=oldest, max_version=newest
        )

    def get_common_version(self) -> str:
        """Return the highest version that both sides support.

        One side is this object, the other side is this process.

        :raises UnsupportedHandle: if this process has no such handle class
        :raises UnsupportedHandleVersion: if there is no common version
        """
        name = self.handle_object_name
        versions = _versions(name)
        as_tuple = versionutils.convert_version_to_tuple
        low, high = as_tuple(self.min_version), as_tuple(self.max_version)
        for version in versions:
            if low <= as_tuple(version) <= high:
                return version
        raise exception.UnsupportedHandleVersion(
            handle=name,
            got=', '.join(versions),
            min_version=self.min_version,
            max_version=self.max_version,
        )


class _SpeaksHandles:
    """What HostPluginInfo and HostDriverInfo have in common."""

    handle_info: list[HostHandleInfo]

    def has_handle(self, name: str) -> bool:
        return any(i.handle_object_name == name for i in self.handle_info)

    def get_handle(self, name: str) -> HostHandleInfo:
        """Return the supported versions of a handle class.

        :raises UnsupportedHandle: if the handle class is not supported
        """
        for info in self.handle_info:
            if info.handle_object_name == name:
                return info
        raise exception.UnsupportedHandle(
            taker=str(self),
            handle=name,
            takes=', '.join(i.handle_object_name for i in self.handle_info)
            or 'none',
        )

    def filter_handle_types(self, permitted: Collection[str]) -> None:
        self.handle_info = [
            info
            for info in self.handle_info
            if info.handle_object_name in permitted
        ]


@base.VersionedObjectRegistry.register
class HostPluginInfo(_SpeaksHandles, base.VersionedObject):
    """A plugin and the handles that it takes."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'plugin_name': ovo_fields.StringField(),
        'handle_info': ovo_fields.ListOfObjectsField('HostHandleInfo'),
    }

    def __str__(self) -> str:
        return f'plugin {self.plugin_name!r}'


@base.VersionedObjectRegistry.register
class HostDriverInfo(_SpeaksHandles, base.VersionedObject):
    """A driver and the handles that it makes."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'driver_name': ovo_fields.StringField(),
        'handle_info': ovo_fields.ListOfObjectsField('HostHandleInfo'),
    }

    def __str__(self) -> str:
        return f'driver {self.driver_name!r}'


@base.VersionedObjectRegistry.register
class HostInfo(base.VersionedObject):
    """The plugins and drivers of this host, and those that failed to load."""

    # Version 1.0: Initial version
    VERSION = '1.0'

    fields = {
        'plugin_info': ovo_fields.ListOfObjectsField('HostPluginInfo'),
        'driver_info': ovo_fields.ListOfObjectsField(
            'HostDriverInfo', default=[]
        ),
        # By 'plugin NAME' or 'driver NAME': why it could not be loaded or
        # described.
        'load_errors': ovo_fields.DictOfStringsField(default={}),
    }

    def has_plugin(self, name: str) -> bool:
        return any(info.plugin_name == name for info in self.plugin_info)

    def get_plugin(self, name: str) -> HostPluginInfo:
        """Return a plugin by its name.

        :raises NoMatchingPlugin: if the plugin is not loaded
        """
        for info in self.plugin_info:
            if info.plugin_name == name:
                return info
        raise exception.NoMatchingPlugin(plugin=name, reason='not loaded')

    def has_driver(self, name: str) -> bool:
        return any(info.driver_name == name for info in self.driver_info)

    def get_driver(self, name: str) -> HostDriverInfo:
        """Return a driver by its name.

        :raises NoMatchingDriver: if the driver is not loaded
        """
        for info in self.driver_info:
            if info.driver_name == name:
                return info
        raise exception.NoMatchingDriver(
            request=f'driver name {name!r}', reason='not loaded'
        )

    def filter_handle_types(self, permitted: Collection[str]) -> None:
        """Keep the plugins and drivers that support a permitted handle class.

        :param permitted: names of handle classes, such as PCIHandle
        """
        for plugin in self.plugin_info:
            plugin.filter_handle_types(permitted)
        for driver in self.driver_info:
            driver.filter_handle_types(permitted)
        self.plugin_info = [i for i in self.plugin_info if i.handle_info]
        self.driver_info = [i for i in self.driver_info if i.handle_info]
