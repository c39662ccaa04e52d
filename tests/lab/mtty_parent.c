/*
 * SPDX-License-Identifier: Apache-2.0
 */

/*
 * The kernel's sample mtty (samples/vfio-mdev/mtty.c) with one more parameter:
 * "modprobe mtty parent=0000:00:17.0" makes a PCI function the parent of the
 * mediated devices, as it is with vGPUs. Without the parameter, the parent is
 * the virtual device mtty, as in the sample.
 */

#include <linux/mdev.h>
#include <linux/module.h>
#include <linux/pci.h>

static char *parent;
module_param(parent, charp, 0444);
MODULE_PARM_DESC(parent, "PCI address of the parent of mediated devices");

static int register_parent(struct mdev_parent *mdev_parent, struct device *dev,
			   struct mdev_driver *driver,
			   struct mdev_type **types, unsigned int nr_types)
{
	struct device *pci;
	int ret;

	if (!parent)
		return mdev_register_parent(mdev_parent, dev, driver, types,
					    nr_types);
	pci = bus_find_device_by_name(&pci_bus_type, NULL, parent);
	if (!pci)
		return -ENODEV;
	/* The mdev core takes a reference of its own. */
	ret = mdev_register_parent(mdev_parent, pci, driver, types, nr_types);
	put_device(pci);
	return ret;
}

#define mdev_register_parent register_parent
#include "mtty_sample.c"
