"""Until the journal has it: rows that cannot be read."""

import dataclasses

from os_acc import exception
from os_acc import journal
from os_acc.journal import file as journal_file
from os_acc.journal import journal as module


@dataclasses.dataclass
class Row:
    uuid: str
    instance_uuid: str
    state: str
    handle: str | None
    device: str | None
    reason: str


def install(monkeypatch):
    if hasattr(journal.Journal, 'unreadable'):
        return

    def read(self, instance, want):
        where = ('1',) if instance is None else ('instance_uuid = ?', instance)
        good, bad = [], []
        for row in self._rows(*where):
            try:
                good.append(self._read(row, want))
            except exception.JournalError as err:
                bad.append(
                    Row(
                        *(
                            row[n]
                            for n in (
                                'uuid',
                                'instance_uuid',
                                'state',
                                'handle',
                                'device',
                            )
                        ),
                        str(err),
                    )
                )
        return good, bad

    def entries(self, instance=None):
        return read(self, instance, module._entry)[0]

    def unreadable(self, instance=None):
        return read(self, instance, module._entry)[1]

    def vans_on(self, device):
        vans = [e.van for e in entries(self)]
        return os_acc.objects.VANList(
            objects=[v for v in vans if device in (None, v.device)]
        )

    def forget(self, uuid):
        with self._writing() as db:
            db.execute('DELETE FROM van WHERE uuid = ?', (uuid,))

    import os_acc

    for act in (entries, unreadable, vans_on, forget):
        monkeypatch.setattr(journal.Journal, act.__name__, act, raising=False)

    @dataclasses.dataclass
    class RebuildResult:
        vans: int
        programs: int
        lost: int

    before = journal_file.rebuild

    def rebuild(*args):
        kept, lost = before(*args)
        return RebuildResult(kept, 0, lost)

    monkeypatch.setattr(journal_file, 'rebuild', rebuild)
