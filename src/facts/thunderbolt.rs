//! Thunderbolt ports and the cables in them: `system_profiler SPThunderboltDataType -json`.
//!
//! A peer Mac is any item, at any depth, that has a domain of its own; displays, docks, drives and
//! hubs have none. Names and models do not identify it, and most keys may be missing.

use daisy_proto::Cable;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receptacle {
    /// The number beside the port; also that of its hardware port, `Thunderbolt 2`.
    pub number: u8,
    pub is_connected: bool,
    /// Of the link; of an empty port what it could do.
    pub gbit_per_s: Option<u16>,
    /// To other Macs, through hubs or not.
    pub cables: Vec<Cable>,
}

/// The ports of this Mac. None: the output is not what `system_profiler` prints.
pub fn parse(json: &str) -> Option<Vec<Receptacle>> {
    let value: Value = serde_json::from_str(json).ok()?;
    let buses = value.get("SPThunderboltDataType")?.as_array()?;
    let mut ports: Vec<Receptacle> = buses.iter().flat_map(receptacles).collect();
    ports.sort_by_key(|port| port.number);
    Some(ports)
}

/// Of one bus: one, or two on older Macs.
fn receptacles(bus: &Value) -> Vec<Receptacle> {
    let own_domain = text(bus, "domain_uuid_key").unwrap_or_default();
    let tags = bus.as_object().into_iter().flatten();
    let tags = tags.filter(|(key, _)| key.starts_with("receptacle_") && key.ends_with("_tag"));
    let mut ports: Vec<Receptacle> = tags.filter_map(|(_, tag)| receptacle(tag)).collect();
    let mut peers = Vec::new();
    find_peers(bus, own_domain, DEPTH_MAX, &mut peers);
    // Which of two ports of one bus a cable is in is not told; a single connected one it must be.
    let mut connected = ports.iter_mut().filter(|port| port.is_connected);
    if let (Some(port), None) = (connected.next(), connected.next()) {
        let cable = |peer_domain| Cable {
            receptacle: port.number,
            own_domain: own_domain.to_owned(),
            peer_domain,
            gbit_per_s: port.gbit_per_s,
        };
        port.cables = peers.into_iter().map(cable).collect();
    }
    ports
}

fn receptacle(tag: &Value) -> Option<Receptacle> {
    let number = text(tag, "receptacle_id_key")?.parse().ok()?;
    // Not the link status: an empty port has 0x100 or 0x7, a connected one 0x2 or 0x4.
    let is_connected = text(tag, "receptacle_status_key") == Some("receptacle_connected");
    let gbit_per_s = text(tag, "current_speed_key").and_then(speed);
    Some(Receptacle { number, is_connected, gbit_per_s, cables: Vec::new() })
}

fn find_peers(item: &Value, own_domain: &str, depth: usize, found: &mut Vec<String>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for inner in item.get("_items").and_then(Value::as_array).into_iter().flatten() {
        if let Some(domain) = text(inner, "domain_uuid_key").filter(|domain| *domain != own_domain)
        {
            found.push(domain.to_owned());
        }
        find_peers(inner, own_domain, depth, found);
    }
}

/// `40 Gb/s`, `Up to 40 Gb/s x1`: the number before the unit.
fn speed(text: &str) -> Option<u16> {
    text.split_once(" Gb/s")?.0.rsplit(' ').next()?.parse().ok()
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// Thunderbolt chains six devices; hubs make a tree of the same depth.
const DEPTH_MAX: usize = 16;
