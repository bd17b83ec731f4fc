"""TUN devices for cables that a program makes.

  tun.py NAME NAMESPACE…    a device of this name in each namespace (`-`: this one); prints a line with their
                            descriptors and keeps them open until standard input ends
"""

import fcntl
import os
import struct
import subprocess
import sys


def open_tun(name, namespace=None, mtu=1500):
    """A new device in a namespace; gives its descriptor. It is gone when the descriptor is closed."""
    made = f"dt{os.getpid() % 100000}{namespace and len(namespace) or 0}"
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", made.encode(), IFF_TUN | IFF_NO_PI))
    within = ["netns", namespace] if namespace else []
    subprocess.run(["ip", "link", "set", made, "mtu", str(mtu), "name", name, *within], check=True)
    return device


TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000

if __name__ == "__main__":
    devices = [open_tun(sys.argv[1], None if place == "-" else place) for place in sys.argv[2:]]
    print(*devices, flush=True)
    sys.stdin.read()
