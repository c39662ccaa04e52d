/*
 * SPDX-License-Identifier: Apache-2.0
 */

/*
 * The program in a container: opens a group of VFIO, gets a device of it, and
 * prints what VFIO_DEVICE_GET_INFO says: flags, regions, interrupts.
 * Usage: vfio_info GROUP-FILE DEVICE
 */

#include <fcntl.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <sys/ioctl.h>

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	struct vfio_group_status status = { .argsz = sizeof(status) };
	struct vfio_device_info info = { .argsz = sizeof(info) };
	int container, group, device;

	if (argc != 3)
		return 2;
	container = open("/dev/vfio/vfio", O_RDWR);
	if (container < 0)
		return fail("/dev/vfio/vfio");
	group = open(argv[1], O_RDWR);
	if (group < 0)
		return fail(argv[1]);
	if (ioctl(group, VFIO_GROUP_GET_STATUS, &status))
		return fail("VFIO_GROUP_GET_STATUS");
	if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE)) {
		fprintf(stderr, "the group is not viable\n");
		return 1;
	}
	if (ioctl(group, VFIO_GROUP_SET_CONTAINER, &container))
		return fail("VFIO_GROUP_SET_CONTAINER");
	if (ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1_IOMMU))
		return fail("VFIO_SET_IOMMU");
	device = ioctl(group, VFIO_GROUP_GET_DEVICE_FD, argv[2]);
	if (device < 0)
		return fail("VFIO_GROUP_GET_DEVICE_FD");
	if (ioctl(device, VFIO_DEVICE_GET_INFO, &info))
		return fail("VFIO_DEVICE_GET_INFO");
	printf("flags %#x regions %u irqs %u\n", info.flags, info.num_regions,
	       info.num_irqs);
	return 0;
}
