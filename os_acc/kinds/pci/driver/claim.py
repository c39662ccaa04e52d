# SPDX-License-Identifier: Apache-2.0

"""Claiming PCI functions for VANs: choose, take, bind, give back.

The driver pci does nothing else. A driver that does more, such as fpga, uses
Claims for what is the same for all PCI functions.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import logging

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc.availability import storage
from os_acc.drivers import allocation
from os_acc.drivers import choosing
from os_acc.drivers import migratable
from os_acc.drivers import pci_functions
from os_acc.kernel import pci
from os_acc.kernel import reset
from os_acc.kinds.pci.driver import between
from os_acc.kinds.pci.driver import companions
from os_acc.kinds.pci.driver import port
from os_acc.kinds.pci.driver import release
from os_acc.kinds.pci.driver import taking
from os_acc.kinds.pci.driver import vfs as pci_vfs
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

#: The options that a driver that uses Claims needs in its own group.
OPTS = (
    cfg.StrOpt(
        'bind',
        default=device_spec.BIND_OS_ACC,
        choices=[
            (device_spec.BIND_OS_ACC, 'os-acc binds it.'),
            (
                device_spec.BIND_LIBVIRT,
                'libvirt binds it, as a managed hostdev.',
            ),
            (device_spec.BIND_NONE, 'The operator binds it.'),
        ],
        help='Who binds a function to VFIO and back. An entry of device_spec '
        'can set another value for its devices.',
    ),
    cfg.StrOpt(
        'reset',
        default=reset.AUTO,
        choices=reset.CHOICES,
        help='Whether a function is reset between two guests. An entry of '
        'device_spec can set another value for its devices.',
    ),
    cfg.StrOpt(
        'between_tenants',
        default=device_spec.BETWEEN_HOST,
        choices=[
            (
                device_spec.BETWEEN_HOST,
                'It is bound to the driver that it had before.',
            ),
            (
                device_spec.BETWEEN_VFIO,
                'It stays bound to its VFIO driver. This is quicker, and no '
                'host driver sees what a guest has left. "os-acc device free" '
                'returns it to the host.',
            ),
        ],
        help='What a function that os-acc binds is bound to after its '
        'release. An entry of device_spec can set another value for its '
        'devices.',
    ),
)


class Claims:
    """Takes PCI functions for the VANs of one driver, and gives them back.

    :param driver: the driver, which has the options OPTS
    :param specs: gives the entries of device_spec that are the driver's
    """

    def __init__(
        self,
        driver: driver_base.DriverBase,
        specs: Callable[[], device_spec.Specs],
    ) -> None:
        self._driver = driver
        self._specs = specs

    def claim(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        for_host: bool = False,
    ) -> None:
        """Take the function that a request names.

        If the VAN has a function already, as after a reboot, that one is
        taken again. Afterwards the VAN has its handle and device, and its row
        has what the undo needs. This makes the VFs of a PF if needed, but
        changes nothing else: bind() does that.

        :param for_host: whether a service of the host itself gets it
        """
        if van.handle is not None:
            taking.take_again(self._driver, self._specs(), van, request)
        else:
            taker = f'driver {self._driver.name!r}'
            handle = objects.PCIHandle.cast(request.handle, taker)
            self._claim(van, request, handle, for_host)

    def choose(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        prepare: Callable[[], None],
        order: Callable[[str], int] | None = None,
        leave_out: Callable[[str], bool] = lambda address: False,
        for_host: bool = False,
    ) -> None:
        """Take the first function that serves a request, and prepare it.

        :param prepare: what is done with it; another function is tried if
            this fails
        :param leave_out: whether not to try an address, asked when it is its
            turn
        """
        unreadable: dict[str, Exception] = {}
        parents: dict[str, str] = {}
        addresses = self._candidates(request, unreadable, parents)
        if order is not None:
            addresses = iter(choosing.ranked(addresses, order))
        failed: set[str | None] = set()  # PFs whose VFs cannot be made

        def parts(address: str) -> Sequence[objects.PCIHandle]:
            if leave_out(address) or (
                failed
                and pci.find(address) is None
                and self.pf_of(address) in failed
            ):
                return ()
            return (objects.PCIHandle(address=address),)

        def take(handle: objects.PCIHandle) -> None:
            try:
                self._claim(
                    van, request, handle, for_host, parents[handle.address]
                )
            except Exception:
                if pci_vfs.MADE in van.driver_data:
                    failed.add(van.device)
                raise
            prepare()

        choosing.choose(
            van,
            request,
            addresses,
            parts,
            take,
            lambda: self.give_back(van),
            'device_spec offers no such PCI function that is left on this '
            'host; os-acc device spec proposes lines for device_spec',
            itertools.chain(
                unreadable.values(),
                pci_functions.refused(self._driver, self._specs(), request),
            ),
        )

    def check_request(
        self, request: objects.AcceleratorRequest, handle: objects.AttachHandle
    ) -> None:
        """See DriverBase.check_request()."""
        taker = f'driver {self._driver.name!r}'
        address = objects.PCIHandle.cast(handle, taker).address
        function = pci.find(address)
        pf = None if function is not None else self.pf_of(address)
        spec = self._specs().check(function or pci.get(pf or address))
        port.check(address, spec, request)
        if (
            request.handle is None
            and function is not None
            and not spec_parts.offers_whole(spec, function)
        ):
            raise exception.DeviceNotFound(
                wanted=f'PCI function {address}',
                reason='its entry of device_spec offers only parts of it',
            )

    def renew(self, van: objects.VAN) -> None:
        """Note a VAN's function anew, if it has other ids now.

        The caller has programmed it, and no guest has had it since.
        """
        function = pci.get(allocation.address_of(van))
        data, bind = dict(van.driver_data), van.driver_data[release.BIND]
        if function.ids == data[release.IDS]:
            return
        spec = self._specs().held(
            function,
            data.get(release.VFIO_DRIVER),
            release.COMMAND_EMPTIES in data,
        )
        data.pop(release.DRIVER_BEFORE, None)
        van.driver_data = {
            release.UNPROGRAMMED: data[release.IDS],
            **data,
            **taking.before(self._driver, van, function, spec, bind),
        }
        van.save()
        if bind not in release.BOUND_BY_OS_ACC:
            release.hold(function.address)

    def bind(self, van: objects.VAN) -> None:
        """Make a VAN's function ready for its guest.

        Binds it to VFIO, unless libvirt or the operator does, and its
        companions after it. Then sets up the network port that it serves.
        """
        address = allocation.address_of(van)
        function, bind = pci.get(address), van.driver_data[release.BIND]
        wanted = companions.own(self._driver, van)
        if bind == device_spec.BIND_HOST:
            taking.take_for_host(van)
        elif bind == device_spec.BIND_OS_ACC:
            wanted = {address: van.driver_data, **wanted}
        elif bind == device_spec.BIND_NONE and storage.is_storage(function):
            from os_acc.privileged.pci import storage_calls

            storage_calls.hand_out(
                address, van.instance_uuid, CONF.os_acc.device_timeout
            )
        if wanted:
            taking.take(self._driver, van, wanted)
        if van.live_migratable is None:
            van.live_migratable = migratable.function(van, address)
        port.set_up(van)
        allocation.reserve_later(van, self._specs(), function)

    def is_intact(self, van: objects.VAN) -> bool:
        """Say whether a VAN's functions are as bind() has left them.

        The functions must be there, and bound to VFIO unless libvirt binds
        them. The settings of a network port are not examined.
        """
        if van.handle is None or release.BIND not in van.driver_data:
            return True  # an older version of os-acc noted nothing
        own = allocation.address_of(van)
        if taking.as_before(own, van.device or own) is None:
            return False
        found = {own: van.driver_data, **companions.own(self._driver, van)}
        return all(taking.is_intact(*each) for each in found.items())

    def give_back(self, van: objects.VAN) -> None:
        """Clean and give back what a VAN has, and remove VFs made for it."""
        if van.handle is None:
            return
        if release.BIND in van.driver_data:
            release.give_back(
                self._driver,
                van,
                between.stays(self._driver, van, self._specs),
            )
        pci_vfs.remove(self._driver, van)

    def pf_of(self, address: str) -> str | None:
        """The PF that has, or would have, a VF at an address."""
        for future, pf, _ in pci_functions.future(self._specs()):
            if future == address:
                return pf.address
        return None

    def _claim(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        wanted: objects.PCIHandle,
        for_host: bool,
        parent: str | None = None,
    ) -> None:
        """Take a function that no VAN has.

        :param parent: if the function was chosen: the PF whose VF it is to
            be, or its own address; None: the request names the function
        """
        address = wanted.address
        function = pci.find(address)
        if parent is not None:
            pf = None if parent == address else parent
        else:
            pf = function.physfn if function else self.pf_of(address)
        with self._driver.lock(pf or address):
            function, new = pci.find(address), False
            if function is None and pf is not None:
                port.check(address, self._specs().check(pci.get(pf)), request)
                pci_vfs.create(self._driver, van, address, pf, self._specs())
                new = True
            function = function or pci.get(address)
            if function.physfn != pf:
                # A new VF is on the bus before the kernel links it to its PF.
                raise exception.DeviceBusy(
                    device=f'PCI function {address}',
                    reason=f'it is not a VF of PF {pf} now'
                    if function.physfn is None
                    else f'the VFs of PF {function.physfn} are currently '
                    'being created',
                )
            spec = self._specs().check(function)
            port.check(address, spec, request)
            with allocation.shared_locks(self._driver, function, spec):
                bind = taking.bind_mode(self._driver, wanted, spec, for_host)
                allocation.check_function(
                    self._driver, van, function, spec, bind, new
                )
                made = (
                    pci_vfs.known(self._driver, pf, self._specs())
                    if pf and not new
                    else {}
                )
                data = {
                    **van.driver_data,
                    **made,
                    **taking.before(self._driver, van, function, spec, bind),
                    **taking.companions_before(
                        self._driver, self._specs(), van, function, spec, bind
                    ),
                    **port.state(function, request, van.driver_data),
                }
                van.driver_data = data
                van.device = pf or address
                van.live_migratable = taking.unknown_or_no(
                    function, spec, bind
                )
                van.handle = objects.PCIHandle(
                    address=address,
                    managed=bind == device_spec.BIND_LIBVIRT,
                    physical_network=spec.physical_network,
                )
                van.save()
                if bind not in release.BOUND_BY_OS_ACC:
                    release.hold(address)

    def _candidates(
        self,
        request: objects.AcceleratorRequest,
        unreadable: dict[str, Exception],
        parents: dict[str, str],
    ) -> Iterator[str]:
        """The functions that match a request and that no VAN has.

        Whether they can be taken is checked for each as it is claimed.

        :param unreadable: gets the error of each that cannot be read
        :param parents: gets the PF of each VF, and the address of each other
            function. Another function can be at the address when it is taken
        """
        specs = self._specs()
        holders = allocation.holders(self._driver)
        for function, spec in pci_functions.listed(
            specs, unreadable=unreadable
        ):
            if (
                pci_functions.kind_of(function, spec).serves(request)
                and port.mismatch(spec, request) is None
                and holders.of_function(function.address) is None
                and spec_parts.offers_whole(spec, function)
            ):
                parents.setdefault(function.address, function.parent)
                yield function.address
        for address, pf, spec in pci_functions.future(specs):
            if (
                pci_functions.kind_of(pf, spec, vf=True).serves(request)
                and port.mismatch(spec, request) is None
                and holders.of_function(address) is None
            ):
                parents.setdefault(address, pf.address)
                yield address
