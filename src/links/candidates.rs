//! Which pairs of addresses may lead from one node to another.
//!
//! Generous: measuring decides. What is left out cannot work, or is not between machines: bridges of
//! virtual machines, radios that are not for us, and one address that both have.

use core::net::IpAddr;

use daisy_proto::{Address, Interface, LinkKind, PathEnd};

/// Pairs of an own end and one of the other node, on-link ones first. `is_here`: the other node is on
/// this machine.
pub fn candidates(
    own: &[Interface],
    other: &[Interface],
    is_here: bool,
) -> Vec<(PathEnd, PathEnd)> {
    let mut pairs: Vec<(Class, PathEnd, PathEnd)> = Vec::new();
    for (a, b) in own.iter().flat_map(|a| other.iter().map(move |b| (a, b))) {
        let mut between: Vec<(Class, PathEnd, PathEnd)> = Vec::new();
        for (x, y) in a.addrs.iter().flat_map(|x| b.addrs.iter().map(move |y| (x, y))) {
            let class = if is_here { here(a, x, y) } else { class(a, x, b, y) };
            // One of a class is enough: the further addresses of two interfaces take the same way.
            if let Some(class) = class
                && between.iter().all(|(known, ..)| *known != class)
            {
                between.push((class, end(a, x), end(b, y)));
            }
        }
        pairs.extend(between);
    }
    pairs.sort_by_key(|(class, ..)| *class);
    pairs.truncate(PAIRS_MAX);
    pairs.into_iter().map(|(_, own, other)| (own, other)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Here,
    LinkLocalV6,
    OnLinkV4,
    LinkLocalV4,
    OnLinkV6,
    RoutedV4,
    RoutedV6,
}

/// Of two nodes on one machine; loopback comes first in every system's list.
fn here(own: &Interface, x: &Address, y: &Address) -> Option<Class> {
    (x.ip == y.ip && own.kind == LinkKind::Loopback).then_some(Class::Here)
}

fn class(own: &Interface, x: &Address, other: &Interface, y: &Address) -> Option<Class> {
    if !leads_out(own.kind) || !leads_out(other.kind) || x.ip == y.ip {
        return None;
    }
    let is_on_link = shares(x.ip, y.ip, x.prefix) || shares(x.ip, y.ip, y.prefix);
    match (x.ip, y.ip) {
        (IpAddr::V6(x), IpAddr::V6(y)) => {
            match (x.is_unicast_link_local(), y.is_unicast_link_local()) {
                (true, true) => Some(Class::LinkLocalV6),
                (false, false) if is_on_link => Some(Class::OnLinkV6),
                (false, false) if is_routed(own.kind, other.kind) => Some(Class::RoutedV6),
                _ => None,
            }
        }
        (IpAddr::V4(x), IpAddr::V4(y)) => match (x.is_link_local(), y.is_link_local()) {
            (true, true) => Some(Class::LinkLocalV4),
            (false, false) if is_on_link => Some(Class::OnLinkV4),
            (false, false) if is_routed(own.kind, other.kind) => Some(Class::RoutedV4),
            _ => None,
        },
        _ => None,
    }
}

fn leads_out(kind: LinkKind) -> bool {
    !matches!(kind, LinkKind::Loopback | LinkKind::VirtualBridge | LinkKind::Unknown)
}

/// Nobody puts a router between two Thunderbolt ports.
fn is_routed(own: LinkKind, other: LinkKind) -> bool {
    let is_network =
        |kind| matches!(kind, LinkKind::Ethernet { .. } | LinkKind::WiFi | LinkKind::Tunnel);
    is_network(own) && is_network(other)
}

/// Whether the leading bits are the same. A prefix of a whole address shares nothing.
fn shares(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let same = |a: u128, b: u128, bits: u32| {
        let rest = bits.saturating_sub(prefix.into());
        prefix > 0 && rest > 0 && a >> rest == b >> rest
    };
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}

fn end(interface: &Interface, addr: &Address) -> PathEnd {
    PathEnd { device: interface.device.clone(), kind: interface.kind, ip: addr.ip }
}

/// Dialled side by side; each costs a handshake, or a timeout.
const PAIRS_MAX: usize = 32;
