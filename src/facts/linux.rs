//! Facts of a Linux machine: /proc/meminfo, /proc/cpuinfo, and what /sys/class/net says of a device.

use daisy_proto::LinkKind;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemInfo {
    pub memory_bytes: u64,
    pub available_bytes: u64,
    pub swap_used_bytes: Option<u64>,
}

impl MemInfo {
    /// None without the total: then the text is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = |name: &str| -> Option<u64> {
            let rows = text.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = rows.into_iter().find(|(key, _)| *key == name)?;
            value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let swap = bytes("SwapTotal").zip(bytes("SwapFree"));
        Some(Self {
            memory_bytes: bytes("MemTotal")?,
            available_bytes: bytes("MemAvailable")?,
            swap_used_bytes: swap.map(|(total, free)| total.saturating_sub(free)),
        })
    }
}

/// The processor's name in /proc/cpuinfo.
pub fn chip(cpuinfo: &str) -> Option<String> {
    let rows = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let names = rows.filter(|(key, _)| matches!(key.trim(), "model name" | "Model" | "Hardware"));
    names.map(|(_, value)| value.trim().to_owned()).find(|name| !name.is_empty())
}

/// `PRETTY_NAME` of /etc/os-release.
pub fn os(os_release: &str) -> Option<String> {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim().trim_matches('"').to_owned())
}

/// What /sys/class/net/DEVICE says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// The number in `type`: ARPHRD.
    pub hardware_type: Option<u32>,
    /// `DEVTYPE` in `uevent`: `wlan`, `bridge`, `wireguard`…
    pub devtype: Option<String>,
    /// Name of the driver.
    pub driver: Option<String>,
    pub has_wireless: bool,
    pub has_tun_flags: bool,
    pub mbit_per_s: Option<u32>,
    /// Of a bridge, the drivers of its members.
    pub member_drivers: Vec<String>,
}

/// Decided by what the device is; its name means nothing.
pub fn kind(device: &Device) -> LinkKind {
    let is_thunderbolt = |driver: &str| driver == THUNDERBOLT_DRIVER;
    let devtype = device.devtype.as_deref();
    if device.hardware_type == Some(ARPHRD_LOOPBACK) {
        LinkKind::Loopback
    } else if device.has_wireless || devtype == Some("wlan") {
        LinkKind::WiFi
    } else if devtype == Some("bridge") {
        if device.member_drivers.iter().any(|driver| is_thunderbolt(driver)) {
            LinkKind::ThunderboltBridge { gbit_per_s: None }
        } else {
            LinkKind::VirtualBridge
        }
    } else if device.driver.as_deref().is_some_and(is_thunderbolt) {
        LinkKind::ThunderboltPort { gbit_per_s: None }
    } else if device.has_tun_flags || device.hardware_type != Some(ARPHRD_ETHER) {
        LinkKind::Tunnel
    } else {
        LinkKind::Ethernet { mbit_per_s: device.mbit_per_s }
    }
}

/// Kinds that the user gives by hand, as in `eth1=wifi,br0=thunderbolt`: for a radio that looks like a
/// cable, or a cable that looks like something else.
pub fn given_kind(list: &str, device: &str) -> Option<LinkKind> {
    let pairs = list.split(',').filter_map(|pair| pair.trim().split_once('='));
    let (_, kind) = pairs.into_iter().find(|(name, _)| *name == device)?;
    match kind {
        "thunderbolt" => Some(LinkKind::ThunderboltBridge { gbit_per_s: None }),
        "ethernet" => Some(LinkKind::Ethernet { mbit_per_s: None }),
        "wifi" => Some(LinkKind::WiFi),
        "tunnel" => Some(LinkKind::Tunnel),
        _ => None,
    }
}

const ARPHRD_ETHER: u32 = 1;
const ARPHRD_LOOPBACK: u32 = 772;
const THUNDERBOLT_DRIVER: &str = "thunderbolt-net";
