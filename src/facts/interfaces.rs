//! What each interface of a Mac leads over, from three commands together.
//!
//! The chain is receptacle number → hardware port `Thunderbolt N` → device; names of devices and the
//! order of lists mean nothing. A bridge is a Thunderbolt bridge if one of its members is such a
//! device: bridges of virtual machines and of a shared connection have `enN` members too. Where the
//! bridge is missing though cables are in, each port is an interface of its own.

use daisy_proto::{Device, Interface, LinkKind};

use super::ifconfig::IfBlock;
use super::ports::{Hardware, Port};
use super::thunderbolt::Receptacle;

/// The interfaces that are up and have an address.
pub fn conclude(blocks: &[IfBlock], ports: &[Port], receptacles: &[Receptacle]) -> Vec<Interface> {
    let all = blocks.iter().filter(|block| block.is_live() && !block.addrs.is_empty());
    all.map(|block| Interface {
        // Without a link-local address and without `-v` the index is not told, and not needed.
        device: Device { name: block.name.clone(), index: block.index.unwrap_or(0) },
        kind: kind(block, blocks, ports, receptacles),
        mtu: block.mtu,
        addrs: block.addrs.clone(),
    })
    .collect()
}

/// What an interface leads over.
pub fn kind(
    block: &IfBlock,
    blocks: &[IfBlock],
    ports: &[Port],
    receptacles: &[Receptacle],
) -> LinkKind {
    if block.has_flag("LOOPBACK") {
        return LinkKind::Loopback;
    }
    if block.has_flag("POINTOPOINT") {
        return LinkKind::Tunnel;
    }
    let speed = |device: &str| speed_of(device, ports, receptacles);
    if is_bridge(block) {
        if !block.members.iter().any(|member| is_thunderbolt(member, blocks, ports)) {
            return LinkKind::VirtualBridge;
        }
        let is_live = |member: &&String| {
            blocks.iter().any(|other| other.name == **member && other.is_active == Some(true))
        };
        let fastest = block.members.iter().filter(is_live).filter_map(|member| speed(member)).max();
        return LinkKind::ThunderboltBridge { gbit_per_s: fastest };
    }
    if is_thunderbolt(&block.name, blocks, ports) {
        return LinkKind::ThunderboltPort { gbit_per_s: speed(&block.name) };
    }
    let hardware = ports.iter().find(|port| port.device == block.name).map(|port| port.hardware);
    match (hardware, block.medium.as_deref()) {
        (Some(Hardware::WiFi), _) | (_, Some("Wi-Fi")) => LinkKind::WiFi,
        (Some(Hardware::Wired), _) => LinkKind::Ethernet { mbit_per_s: block.mbit_per_s() },
        // Radios without a port of their own (awdl0, llw0), and the device side of USB-C.
        _ => LinkKind::Unknown,
    }
}

fn is_bridge(block: &IfBlock) -> bool {
    !block.members.is_empty()
}

fn is_thunderbolt(device: &str, blocks: &[IfBlock], ports: &[Port]) -> bool {
    let by_port = receptacle_of(device, ports).is_some();
    // Told without any name of a port, so in every language.
    let by_medium = blocks.iter().any(|block| {
        block.name == device && block.medium.as_deref() == Some("IP over Thunderbolt")
    });
    by_port || by_medium
}

fn receptacle_of(device: &str, ports: &[Port]) -> Option<u8> {
    ports.iter().find(|port| port.device == device).and_then(|port| match port.hardware {
        Hardware::Thunderbolt(number) => Some(number),
        _ => None,
    })
}

fn speed_of(device: &str, ports: &[Port], receptacles: &[Receptacle]) -> Option<u16> {
    let number = receptacle_of(device, ports)?;
    let port = receptacles.iter().find(|port| port.number == number && port.is_connected)?;
    port.gbit_per_s
}
