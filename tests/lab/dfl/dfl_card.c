/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Alternatively, this file may be distributed under the terms of the GNU
 * General Public License version 2, as the kernel that loads it.
 */

/*
 * A simulated FPGA card with a device feature list (DFL), for the kernel's
 * own drivers dfl-pci, dfl-fme, dfl-fme-mgr, dfl-fme-br, dfl-fme-region and
 * dfl-afu, none of which is changed.
 *
 * The registers of the card are plain memory: BAR 2 of a function
 * ivshmem-plain. It is divided into windows of equal size. BAR 0 of a
 * borrowed PCI function, which must have no driver, is redirected to window
 * 0; BAR 0 of its VF n to window n + 1. Window 0 has the FPGA management
 * engine (FME) and the ports. The window of a VF has one port: VF n has the
 * n-th of the ports that the FME gives to VFs (FME_PORT_OFST_ACC_CTRL). The
 * kernel shows the ids of Intel's card D5005 and of its VFs, which dfl-pci
 * knows, and the class of an accelerator.
 *
 * Memory does not answer. So a kprobe at the start of each of the drivers'
 * functions that ask the card something writes the answer into the registers
 * before the driver asks:
 *
 *   fme_mgr_write_init      the reset of the reconfiguration engine is done
 *   fme_mgr_write           (reads the bitstream, which the driver pushes
 *                           through one register)
 *   fme_mgr_write_complete  the outcome; with delay_ms it is written later
 *   __afu_port_disable, __afu_port_enable
 *                           the reset of a port is done
 *
 * A bitstream of this card has the id of its accelerator function, 16 bytes,
 * then the id of the interface that it was built for, 16 bytes, and then any
 * payload. The card refuses another interface than its own.
 *
 * The register layout is that of drivers/fpga/dfl.h and dfl-fme-mgr.c.
 */

#include <linux/bitfield.h>
#include <linux/crc32.h>
#include <linux/io.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/workqueue.h>
#include <asm/unaligned.h>

#define PORTS		2
#define VFS		4
#define WINDOW		0x10000UL
#define CARD_SIZE	(WINDOW * (1 + VFS))

/* Offsets in a window. In that of a VF, the port is at 0. */
#define FME		0x0000UL
#define PR		0x1000UL	/* partial reconfiguration */
#define PORT_SIZE	0x4000UL
#define PORT(n)		(PORT_SIZE * (1 + (n)))

/* Offsets in a port. */
#define PORT_ERRORS	0x1000UL
#define AFU		0x2000UL

/* Device feature header: type, id, offset of the next one, end of list. */
#define DFH(type, id, next, last) \
	((u64)(type) << 60 | (u64)(last) << 40 | (u64)(next) << 16 | (id))
#define TYPE_AFU	1
#define TYPE_PRIVATE	3
#define TYPE_FIU	4
#define GUID_L		0x08
#define GUID_H		0x10
#define NEXT_AFU	0x18
#define CAPABILITY	0x30

#define FME_PORT_OFST(n) (0x38 + 8 * (n))
#define PORT_PRESENT	BIT_ULL(60)
#define PORT_FOR_VF	BIT_ULL(55)
#define FME_BITSTREAM	0x60

#define PR_CTRL		(PR + 0x08)
#define PR_CTRL_RSTACK	BIT_ULL(4)
#define PR_CTRL_PORT	GENMASK_ULL(9, 7)
#define PR_CTRL_START	BIT_ULL(12)
#define PR_STS		(PR + 0x10)
#define PR_STS_CREDIT	511ULL
#define PR_STS_ERROR	BIT_ULL(16)
#define PR_ERR		(PR + 0x20)
#define PR_ERR_OPERATION BIT_ULL(0)
#define PR_ERR_INTERFACE BIT_ULL(2)
#define PR_ERR_ALL	GENMASK_ULL(4, 0)
#define PR_INTERFACE_L	(PR + 0xa8)
#define PR_INTERFACE_H	(PR + 0xb0)

#define PORT_CTRL	0x38
#define PORT_CTRL_RESET	BIT_ULL(0)
#define PORT_CTRL_ACK	BIT_ULL(4)

static char *function = "";
module_param(function, charp, 0444);
MODULE_PARM_DESC(function, "address of the PCI function that becomes the card");

static uint error;
module_param(error, uint, 0644);
MODULE_PARM_DESC(error, "what the next reconfiguration fails with: PR_ERR");

static bool no_completion;
module_param(no_completion, bool, 0644);
MODULE_PARM_DESC(no_completion, "reconfigurations never end");

static bool no_engine_reset;
module_param(no_engine_reset, bool, 0644);
MODULE_PARM_DESC(no_engine_reset, "the engine never answers a reset");

static bool no_port_reset;
module_param(no_port_reset, bool, 0644);
MODULE_PARM_DESC(no_port_reset, "the ports never answer a reset");

static uint delay_ms;
module_param(delay_ms, uint, 0644);
MODULE_PARM_DESC(delay_ms, "how long a reconfiguration takes");

static uint programmed;
module_param(programmed, uint, 0444);
MODULE_PARM_DESC(programmed, "how many reconfigurations have succeeded");

static uint crc;
module_param(crc, uint, 0444);
MODULE_PARM_DESC(crc, "CRC-32 of the last bitstream, padded to 4 bytes");

struct id {
	u64 high, low;
};

static const struct id interface = { 0xaf84c9d3e2b14f67, 0x9c0d51a7e8362bf4 };
/* What the ports have after power-on. */
static const struct id blank = { 0x0c56f2d1a83b4e95, 0xb7d21e6f4a90c358 };

struct bitstream {
	struct id afu, interface;
	bool complete;
};

/* What the kernel shows of a PCI function. */
struct identity {
	unsigned short vendor, device;
	unsigned int class;
};

static const struct identity d5005 = { 0x8086, 0x0b2b, 0x120000 };
static const struct identity d5005_vf = { 0x8086, 0x0b2c, 0x120000 };

static struct pci_dev *memory, *card;
static void __iomem *registers;
static resource_size_t start;
static struct resource before;
static struct identity identity_before;
static struct bitstream pushed;
static int port_of_vf[VFS];

static u64 *at(unsigned long offset)
{
	return (u64 __force *)(registers + offset);
}

static u64 get(unsigned long offset)
{
	return READ_ONCE(*at(offset));
}

static void set(unsigned long offset, u64 value)
{
	WRITE_ONCE(*at(offset), value);
}

/* Bits, with no loss of what the drivers write at the same time. */
static void change(unsigned long offset, u64 off, u64 on)
{
	u64 old;

	do
		old = get(offset);
	while (cmpxchg64(at(offset), old, (old & ~off) | on) != old);
}

/* --- the device feature lists */

static void set_afu(unsigned long port, struct id afu)
{
	set(port + AFU + GUID_L, afu.low);
	set(port + AFU + GUID_H, afu.high);
}

static void lay_port(unsigned long port, int number, struct id afu)
{
	set(port, DFH(TYPE_FIU, 1, PORT_ERRORS, 0));
	set(port + NEXT_AFU, AFU);
	set(port + CAPABILITY, 4 << 8 | number);	/* AFU of 4 KiB */
	set(port + PORT_CTRL, PORT_CTRL_RESET);
	set(port + PORT_ERRORS, DFH(TYPE_PRIVATE, 0x10, 0x1000, 1));
	set(port + AFU, DFH(TYPE_AFU, 0, 0, 1));
	set_afu(port, afu);
}

static void lay_card(void)
{
	int i;

	memset_io(registers, 0, CARD_SIZE);
	set(FME, DFH(TYPE_FIU, 0, PR, 0));
	set(FME + CAPABILITY, PORTS << 17 | 1);
	set(FME + FME_BITSTREAM, 0x0b0a090807060504);
	set(PR, DFH(TYPE_PRIVATE, 5, 0x1000, 1));
	set(PR_STS, PR_STS_CREDIT);
	set(PR_INTERFACE_L, interface.low);
	set(PR_INTERFACE_H, interface.high);
	for (i = 0; i < PORTS; i++) {
		set(FME_PORT_OFST(i), PORT_PRESENT | PORT(i));
		lay_port(PORT(i), i, blank);
	}
}

/* --- partial reconfiguration */

static void answer(struct work_struct *unused)
{
	unsigned int port = FIELD_GET(PR_CTRL_PORT, get(PR_CTRL));
	u64 why = error & PR_ERR_ALL;
	int vf;

	error = 0;
	if (!pushed.complete || port >= PORTS)
		why |= PR_ERR_OPERATION;
	else if (memcmp(&pushed.interface, &interface, sizeof(interface)))
		why |= PR_ERR_INTERFACE;
	if (why) {
		set(PR_ERR, why);
		set(PR_STS, PR_STS_ERROR | PR_STS_CREDIT);
	} else {
		set_afu(PORT(port), pushed.afu);
		for (vf = 0; vf < VFS; vf++)
			if (port_of_vf[vf] == port)
				set_afu(WINDOW * (1 + vf), pushed.afu);
		programmed++;
	}
	change(PR_CTRL, PR_CTRL_START, 0);
}

static DECLARE_DELAYED_WORK(later, answer);

static int before_init(struct kprobe *probe, struct pt_regs *regs)
{
	set(PR_ERR, 0);
	set(PR_STS, PR_STS_CREDIT);
	change(PR_CTRL, PR_CTRL_START | PR_CTRL_RSTACK,
	       no_engine_reset ? 0 : PR_CTRL_RSTACK);
	return 0;
}

/* fme_mgr_write(struct fpga_manager *, const char *buf, size_t count) */
static int before_write(struct kprobe *probe, struct pt_regs *regs)
{
	const u8 *buf = (const u8 *)regs->si;
	size_t count = regs->dx;

	pushed = (struct bitstream){ .complete = count > 32 };
	if (pushed.complete) {
		pushed.afu.high = get_unaligned_be64(buf);
		pushed.afu.low = get_unaligned_be64(buf + 8);
		pushed.interface.high = get_unaligned_be64(buf + 16);
		pushed.interface.low = get_unaligned_be64(buf + 24);
	}
	crc = ~crc32_le(~0U, buf, count);
	return 0;
}

static int before_complete(struct kprobe *probe, struct pt_regs *regs)
{
	if (no_completion)
		return 0;
	if (delay_ms)
		schedule_delayed_work(&later, msecs_to_jiffies(delay_ms));
	else
		answer(NULL);
	return 0;
}

/* --- reset of a port: __afu_port_disable(struct platform_device *) */

static int before_port(struct kprobe *probe, struct pt_regs *regs)
{
	struct platform_device *pdev = (struct platform_device *)regs->di;
	resource_size_t place = pdev->resource[0].start;

	if (place < start || place >= start + CARD_SIZE || no_port_reset)
		return 0;
	place = ALIGN_DOWN(place - start, PORT_SIZE) + PORT_CTRL;
	if (!strcmp(probe->symbol_name, "__afu_port_disable"))
		change(place, 0, PORT_CTRL_ACK);
	else
		change(place, PORT_CTRL_ACK, 0);
	return 0;
}

static struct kprobe probes[] = {
	{ .symbol_name = "fme_mgr_write_init", .pre_handler = before_init },
	{ .symbol_name = "fme_mgr_write", .pre_handler = before_write },
	{ .symbol_name = "fme_mgr_write_complete",
	  .pre_handler = before_complete },
	{ .symbol_name = "__afu_port_disable", .pre_handler = before_port },
	{ .symbol_name = "__afu_port_enable", .pre_handler = before_port },
};

static void unprobe(int number)
{
	while (number--)
		unregister_kprobe(&probes[number]);
}

static int probe(void)
{
	int i, ret;

	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		ret = register_kprobe(&probes[i]);
		if (ret) {
			unprobe(i);
			return ret;
		}
	}
	return 0;
}

/* --- identity, and BAR 0, of the card and of its VFs */

static struct identity identity(const struct pci_dev *dev)
{
	return (struct identity){ dev->vendor, dev->device, dev->class };
}

static void identify(struct pci_dev *dev, struct identity as)
{
	dev->vendor = as.vendor;
	dev->device = as.device;
	dev->class = as.class;
}

static int redirect(struct pci_dev *dev, resource_size_t from,
		    resource_size_t to)
{
	struct resource *bar = &dev->resource[0];

	if (bar->parent)
		release_resource(bar);
	bar->start = from;
	bar->end = to;
	return insert_resource(&iomem_resource, bar);
}

static void lay_vf(int vf)
{
	unsigned long window = WINDOW * (1 + vf);
	int i, n = 0;

	memset_io(registers + window, 0, WINDOW);
	port_of_vf[vf] = -1;
	for (i = 0; i < PORTS; i++) {
		struct id afu = {
			get(PORT(i) + AFU + GUID_H), get(PORT(i) + AFU + GUID_L)
		};

		if (get(FME_PORT_OFST(i)) & PORT_FOR_VF && n++ == vf) {
			lay_port(window, i, afu);
			port_of_vf[vf] = i;
		}
	}
}

static int on_bus(struct notifier_block *block, unsigned long what,
		  void *data)
{
	struct pci_dev *dev = to_pci_dev(data);
	int vf;

	if (!dev->is_virtfn || dev->physfn != card)
		return NOTIFY_DONE;
	vf = pci_iov_vf_id(dev);
	if (vf < 0 || vf >= VFS)
		return NOTIFY_DONE;
	if (what == BUS_NOTIFY_REMOVED_DEVICE)
		port_of_vf[vf] = -1;
	if (what != BUS_NOTIFY_ADD_DEVICE)
		return NOTIFY_DONE;
	lay_vf(vf);
	identify(dev, d5005_vf);
	if (redirect(dev, start + WINDOW * (1 + vf),
		     start + WINDOW * (2 + vf) - 1))
		pci_err(dev, "dfl_card: BAR 0 was not redirected\n");
	return NOTIFY_OK;
}

static struct notifier_block watcher = { .notifier_call = on_bus };

/* --- the module */

static struct pci_dev *find(const char *address)
{
	unsigned int domain, bus, slot, number;

	if (sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &number) != 4)
		return NULL;
	return pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, number));
}

static int __init dfl_card_init(void)
{
	int i, ret = -ENODEV;

	for (i = 0; i < VFS; i++)
		port_of_vf[i] = -1;
	card = find(function);
	memory = pci_get_device(0x1af4, 0x1110, NULL);	/* ivshmem */
	if (!card || !memory || pci_resource_len(memory, 2) < CARD_SIZE)
		goto put;
	ret = -EBUSY;
	if (card->dev.driver)
		goto put;
	ret = pci_enable_device(memory);
	if (ret)
		goto put;
	start = pci_resource_start(memory, 2);
	registers = ioremap(start, CARD_SIZE);
	ret = -ENOMEM;
	if (!registers)
		goto disable;
	lay_card();
	ret = probe();	/* the drivers must be loaded already */
	if (ret)
		goto unmap;
	before = card->resource[0];
	ret = redirect(card, start, start + WINDOW - 1);
	if (ret)
		goto unprobe;
	identity_before = identity(card);
	identify(card, d5005);
	ret = bus_register_notifier(&pci_bus_type, &watcher);
	if (!ret)
		return 0;
	identify(card, identity_before);
	redirect(card, before.start, before.end);
unprobe:
	unprobe(ARRAY_SIZE(probes));
unmap:
	iounmap(registers);
disable:
	pci_disable_device(memory);
put:
	pci_dev_put(memory);
	pci_dev_put(card);
	return ret;
}

/* The function must be unbound from dfl-pci first. */
static void __exit dfl_card_exit(void)
{
	bus_unregister_notifier(&pci_bus_type, &watcher);
	unprobe(ARRAY_SIZE(probes));
	cancel_delayed_work_sync(&later);
	identify(card, identity_before);
	if (redirect(card, before.start, before.end))
		pci_err(card, "dfl_card: BAR 0 was not restored\n");
	iounmap(registers);
	pci_disable_device(memory);
	pci_dev_put(memory);
	pci_dev_put(card);
}

module_init(dfl_card_init);
module_exit(dfl_card_exit);

MODULE_DESCRIPTION("simulated FPGA card with a device feature list");
MODULE_LICENSE("GPL v2");
