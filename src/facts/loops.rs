//! Rings of Thunderbolt bridges. A Mac's bridge knows no loop protection: in a ring of cables a
//! broadcast goes round for ever.

use std::collections::BTreeMap;

use daisy_proto::Cable;

use super::ifconfig::IfBlock;

/// A sign of a ring that one Mac can see: its bridge learned its own address, or one neighbour behind
/// two ports.
pub fn seen_by_bridge(bridge: &IfBlock) -> Option<String> {
    for (address, member) in &bridge.learned {
        if bridge.ether.as_ref() == Some(address) {
            let name = &bridge.name;
            return Some(format!("{name} hears itself through {member}"));
        }
        let other = bridge.learned.iter().find(|(also, on)| also == address && on != member);
        if let Some((_, other)) = other {
            let name = &bridge.name;
            return Some(format!("{name} hears one neighbour through both {member} and {other}"));
        }
    }
    None
}

/// The machine whose cable closes a ring, and that cable, given the cables that are in the bridge of
/// each machine. One cable is told by both of its ends.
pub fn closing_cable(machines: &[(String, Vec<Cable>)]) -> Option<(String, Cable)> {
    let mut owner = BTreeMap::new();
    for (machine, (_, cables)) in machines.iter().enumerate() {
        owner.extend(cables.iter().map(|cable| (cable.own_domain.as_str(), machine)));
    }
    // Machines that are connected share a root; a cable within one root closes a ring.
    let mut root: Vec<usize> = (0..machines.len()).collect();
    let mut seen = Vec::new();
    for (machine, (name, cables)) in machines.iter().enumerate() {
        for cable in cables {
            let Some(peer) = owner.get(cable.peer_domain.as_str()) else { continue };
            let mut ends = [cable.own_domain.as_str(), cable.peer_domain.as_str()];
            ends.sort_unstable();
            if seen.contains(&ends) {
                continue;
            }
            seen.push(ends);
            let (here, there) = (root[machine], root[*peer]);
            if here == there {
                return Some((name.clone(), cable.clone()));
            }
            root.iter_mut().filter(|of| **of == there).for_each(|of| *of = here);
        }
    }
    None
}
