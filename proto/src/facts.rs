//! What a node knows of its machine: memory, power, and the interfaces over which others reach it.
//!
//! Facts are of one moment and cost little to tell. What a machine does not say is none, never zero.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What a machine is and can spare now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub memory_bytes: u64,
    /// What could be taken without swapping; pages that only cache files count as free.
    pub available_bytes: u64,
    /// The most that this node may use, as its user said.
    pub memory_limit_bytes: Option<u64>,
    /// The share of the memory that weights may take, as its user said.
    pub ceiling_percent: Option<u8>,
    /// What the GPU may hold; none on a machine that computes on its CPU.
    pub gpu_limit_bytes: Option<u64>,
    pub swap_used_bytes: Option<u64>,
    pub pressure: Option<Pressure>,
    /// As the system names it: `Apple M4 Pro`.
    pub chip: Option<String>,
    /// What the memory gives per second at most, as its maker says; none for a chip that is not known.
    pub memory_bytes_per_s: Option<u64>,
    /// With version and build: `macOS 26.5.1 (25F80)`.
    pub os: Option<String>,
    pub power: Option<Power>,
}

impl Facts {
    /// What a model may take: available memory, but never more than the user allowed.
    #[must_use]
    pub fn spare_bytes(&self) -> u64 {
        self.available_bytes.min(self.memory_limit_bytes.unwrap_or(u64::MAX))
    }
}

/// How hard the system looks for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pressure {
    Normal,
    Warning,
    Critical,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Power {
    /// A battery, that of a UPS included, feeds the machine.
    pub on_battery: bool,
    pub charge_percent: Option<u8>,
    /// The system slows the machine down to save power.
    pub low_power: bool,
}

/// A network interface that is up, with its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    pub device: Device,
    pub kind: LinkKind,
    pub mtu: u32,
    pub addrs: Vec<Address>,
}

/// An interface as its own machine names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Device {
    pub name: String,
    /// The scope of its link-local IPv6 addresses.
    pub index: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    pub ip: IpAddr,
    /// Leading bits that all neighbours on this link share.
    pub prefix: u8,
}

/// What an interface leads over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LinkKind {
    /// One interface for all Thunderbolt ports.
    ThunderboltBridge {
        /// Of its fastest live cable.
        gbit_per_s: Option<u16>,
    },
    /// A Thunderbolt port with addresses of its own.
    ThunderboltPort {
        gbit_per_s: Option<u16>,
    },
    Ethernet {
        mbit_per_s: Option<u32>,
    },
    WiFi,
    /// A VPN or another tunnel: what it leads over is unknown.
    Tunnel,
    /// Of virtual machines, containers or a shared connection.
    VirtualBridge,
    Loopback,
    Unknown,
}

/// A Thunderbolt cable to another machine, as one end sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cable {
    /// The number beside the port.
    pub receptacle: u8,
    /// Name the two ports; the other end has the same pair, swapped.
    pub own_domain: String,
    pub peer_domain: String,
    pub gbit_per_s: Option<u16>,
}
