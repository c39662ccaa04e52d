# SPDX-License-Identifier: Apache-2.0

"""The handle versions of this host's plugins and drivers.

A caller uses them to agree on a version.
"""

from __future__ import annotations

from collections.abc import Collection

from oslo_utils import versionutils
from oslo_versionedobjects import fields as ovo_fields

from os_acc import exception
from os_acc import objects
from os_acc.objects import base
from os_acc.objects import fields


def _versions(name: str) -> list[str]:
    """The known versions of a handle class, the highest first.

    :raises UnsupportedHandle: if no attach handle class has this name
    """
    registry = base.VersionedObjectRegistry.obj_classes()
    objects.register_all()
    versions = [
        cls.VERSION
        for cls in (registry.get(name, []) if isinstance(name, str) else [])
        if issubclass(cls, objects.AttachHandle)
    ]
    if not versions:
        raise exception.UnsupportedHandle(
            taker='os-acc',
            handle=name,
            takes=', '.join(sorted(_handle_classes())),
        )
    return versions


def _handle_classes() -> list[str]:
    registry = base.VersionedObjectRegistry.obj_classes()
    return [
        name
        for name, classes in registry.items()
        if issubclass(classes[0], objects.AttachHandle)
        and classes[0] is not objects.AttachHandle
    ]


@base.VersionedObjectRegistry.register
class HostHandleInfo(base.VersionedObject):
    """An attach handle class, and its versions from lowest to highest."""

    VERSION = '1.0'

    handle_object_name: str
    min_version: str
    max_version: str

    fields = {
        'handle_object_name': ovo_fields.StringField(),
        'min_version': ovo_fields.StringField(),
        'max_version': ovo_fields.StringField(),
    }

    @classmethod
    def of(cls, name: str) -> HostHandleInfo:
        """All versions of a handle class that this os-acc knows.

        :param name: the name of the class, such as 'PCIHandle'
        :raises UnsupportedHandle: if no attach handle class has this name
        """
        newest = _versions(name)[0]
        oldest = newest.partition('.')[0] + '.0'
        return cls(
            handle_object_name=name, min_version=oldest, max_version=newest
        )

    def get_common_version(self) -> str:
        """The highest version that both sides know.

        :raises UnsupportedHandle: if this os-acc has no such handle class
        :raises UnsupportedHandleVersion: if both know the class, but no
            common version
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
    """The common part of HostPluginInfo and HostDriverInfo."""

    handle_info: list[HostHandleInfo]

    def has_handle(self, name: str) -> bool:
        """Whether it knows a handle class."""
        return any(i.handle_object_name == name for i in self.handle_info)

    def get_handle(self, name: str) -> HostHandleInfo:
        """Return the versions of a handle class.

        :raises UnsupportedHandle: if it does not know that class
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
    """A plugin and the attach handles that it takes."""

    # Version 1.0: Initial version
    # Version 1.1: Added guest_config_format
    VERSION = '1.1'

    ADDED_IN = {'guest_config_format': '1.1'}

    plugin_name: str
    handle_info: list[HostHandleInfo]
    guest_config_format: str | None = None

    fields = {
        'plugin_name': ovo_fields.StringField(),
        'handle_info': ovo_fields.ListOfObjectsField('HostHandleInfo'),
        # What the plugin puts into guest_config of a VAN: libvirt-xml,
        # cdi-device (a qualified name), powervm-json, or a name of its own.
        # None: nothing, or it is not known.
        'guest_config_format': fields.NameField(nullable=True),
    }

    def __str__(self) -> str:
        return f'plugin {self.plugin_name!r}'


@base.VersionedObjectRegistry.register
class HostDriverInfo(_SpeaksHandles, base.VersionedObject):
    """A driver and the attach handles that it makes."""

    VERSION = '1.0'

    driver_name: str
    handle_info: list[HostHandleInfo]

    fields = {
        'driver_name': ovo_fields.StringField(),
        'handle_info': ovo_fields.ListOfObjectsField('HostHandleInfo'),
    }

    def __str__(self) -> str:
        return f'driver {self.driver_name!r}'


@base.VersionedObjectRegistry.register
class HostInfo(base.VersionedObject):
    """The plugins and drivers of this host, and those that failed."""

    VERSION = '1.0'

    plugin_info: list[HostPluginInfo]
    driver_info: list[HostDriverInfo] = []
    load_errors: dict[str, str] = {}

    fields = {
        'plugin_info': ovo_fields.ListOfObjectsField('HostPluginInfo'),
        'driver_info': ovo_fields.ListOfObjectsField(
            'HostDriverInfo', default=[]
        ),
        # By 'plugin NAME' or 'driver NAME': why it does not load, or what is
        # wrong with what it says about itself.
        'load_errors': ovo_fields.DictOfStringsField(default={}),
    }

    def has_plugin(self, name: str) -> bool:
        """Whether a plugin is loaded."""
        return any(info.plugin_name == name for info in self.plugin_info)

    def get_plugin(self, name: str) -> HostPluginInfo:
        """Return a plugin by name.

        :raises NoMatchingPlugin: if it is not loaded
        """
        for info in self.plugin_info:
            if info.plugin_name == name:
                return info
        raise exception.NoMatchingPlugin(plugin=name, reason='not loaded')

    def has_driver(self, name: str) -> bool:
        """Whether a driver is loaded."""
        return any(info.driver_name == name for info in self.driver_info)

    def get_driver(self, name: str) -> HostDriverInfo:
        """Return a driver by name.

        :raises NoMatchingDriver: if it is not loaded
        """
        for info in self.driver_info:
            if info.driver_name == name:
                return info
        raise exception.NoMatchingDriver(
            request=f'driver name {name!r}', reason='not loaded'
        )

    def filter_handle_types(self, permitted: Collection[str]) -> None:
        """Keep the plugins and drivers that have a permitted handle class.

        :param permitted: names of handle classes, such as PCIHandle
        """
        for plugin in self.plugin_info:
            plugin.filter_handle_types(permitted)
        for driver in self.driver_info:
            driver.filter_handle_types(permitted)
        self.plugin_info = [i for i in self.plugin_info if i.handle_info]
        self.driver_info = [i for i in self.driver_info if i.handle_info]
