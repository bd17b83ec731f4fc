//! Linux: /proc and /sys/class/net.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use daisy_proto::{Cable, Device, Facts, Interface};

use super::{Addrs, address};
use crate::doctor::System;
use crate::facts::linux::{self, MemInfo};

pub(super) fn facts() -> Facts {
    let memory = MemInfo::parse(&text("/proc/meminfo")).unwrap_or_default();
    Facts {
        memory_bytes: memory.memory_bytes,
        available_bytes: memory.available_bytes,
        swap_used_bytes: memory.swap_used_bytes,
        chip: linux::chip(&text("/proc/cpuinfo")),
        os: linux::os(&text("/etc/os-release")),
        ..Facts::default()
    }
}

pub(super) fn interfaces(addrs: &Addrs) -> Vec<Interface> {
    let mut interfaces: Vec<Interface> = Vec::new();
    for addr in addrs {
        if let Some(known) = interfaces.iter_mut().find(|known| known.device.name == addr.name) {
            known.addrs.push(address(&addr.addr));
            continue;
        }
        let dir = Path::new("/sys/class/net").join(&addr.name);
        // A port of a bridge is reached through the bridge, whatever address it has.
        if dir.join("brport").exists() {
            continue;
        }
        // The carrier of an interface that is down cannot be read; one without a carrier file is virtual.
        if fs::read_to_string(dir.join("carrier")).is_ok_and(|carrier| carrier.trim() == "0") {
            continue;
        }
        interfaces.push(Interface {
            device: Device { name: addr.name.clone(), index: addr.index.unwrap_or(0) },
            kind: linux::kind(&device(&dir)),
            mtu: number(&dir.join("mtu")).unwrap_or(0),
            addrs: vec![address(&addr.addr)],
        });
    }
    interfaces
}

/// The kernel's own Thunderbolt network tells no cables.
pub(super) fn cables() -> Vec<Cable> {
    Vec::new()
}

/// A firewall here knows ports, not programs, and only root may read it: the links' own measurements
/// show what it does.
pub(super) fn look(system: System, _peers: &[SocketAddr]) -> System {
    system
}

fn device(dir: &Path) -> linux::Device {
    let members = fs::read_dir(dir.join("brif")).into_iter().flatten().flatten();
    let devtype = |uevent: String| {
        let line = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="))?;
        Some(line.to_owned())
    };
    linux::Device {
        hardware_type: number(&dir.join("type")),
        devtype: fs::read_to_string(dir.join("uevent")).ok().and_then(devtype),
        driver: driver(dir),
        has_wireless: dir.join("wireless").exists() || dir.join("phy80211").exists(),
        has_tun_flags: dir.join("tun_flags").exists(),
        // A negative number where nobody knows.
        mbit_per_s: number(&dir.join("speed")),
        member_drivers: members.filter_map(|member| driver(&member.path())).collect(),
    }
}

fn driver(dir: &Path) -> Option<String> {
    let link = fs::read_link(dir.join("device/driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

fn number(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
