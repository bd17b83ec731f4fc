//! This machine's network interfaces, as far as discovery needs them: which ones it uses, and through
//! which one an address is reached.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use if_addrs::{IfAddr, Interface, get_if_addrs};

/// The interfaces on which a node that listens at `listen` looks for others, with their addresses, as
/// people read them.
pub fn interfaces(listen: IpAddr) -> Vec<String> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for interface in get_if_addrs().unwrap_or_default() {
        if is_used(&interface, listen) {
            found.entry(interface.name.clone()).or_default().push(interface.ip().to_string());
        }
    }
    found.into_iter().map(|(name, addrs)| format!("{name} ({})", addrs.join(", "))).collect()
}

/// The name of the interface that leads to `addr`: by scope, or by the network that it lies in. None
/// where a router is between.
pub fn interface_towards(addr: SocketAddr) -> Option<String> {
    let interfaces = get_if_addrs().ok()?;
    let leads = |interface: &&Interface| match (addr, &interface.addr) {
        (SocketAddr::V6(addr), _) if addr.scope_id() != 0 => {
            interface.index == Some(addr.scope_id())
        }
        (SocketAddr::V4(addr), IfAddr::V4(own)) => {
            let within = |ip: std::net::Ipv4Addr| u32::from(ip) & u32::from(own.netmask);
            within(*addr.ip()) == within(own.ip)
        }
        (SocketAddr::V6(addr), IfAddr::V6(own)) => {
            let within = |ip: std::net::Ipv6Addr| u128::from(ip) & u128::from(own.netmask);
            !own.ip.is_unicast_link_local() && within(*addr.ip()) == within(own.ip)
        }
        _ => false,
    };
    interfaces.iter().find(leads).map(|interface| interface.name.clone())
}

/// Whether a node that listens at `listen` is reached through this address of an interface. Loopback
/// leads to no other machine.
pub(super) fn is_used(interface: &Interface, listen: IpAddr) -> bool {
    let ip = interface.ip();
    let listens = match listen {
        IpAddr::V4(listen) if listen.is_unspecified() => ip.is_ipv4(),
        IpAddr::V6(listen) if listen.is_unspecified() => true,
        listen => listen == ip,
    };
    listens && !interface.is_loopback() && !interface.is_p2p()
}
