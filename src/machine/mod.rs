//! What this machine is now: reads what its system offers, and lets [`crate::facts`] say what it means.
//!
//! Every read blocks for milliseconds (for seconds where macOS looks for its cables), so callers keep
//! it off their loop. Readings are kept for a while: facts for less than a second, cables a minute, interfaces until
//! an address comes or goes. It does not know peers or plans. Start at [`Machine::new`].

mod checks;
#[cfg(not(target_os = "macos"))]
#[path = "linux.rs"]
mod os;
#[cfg(target_os = "macos")]
#[path = "macos.rs"]
mod os;

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use daisy_proto::{Address, Cable, Facts, Interface};
use if_addrs::IfAddr;

use crate::facts::linux::given_kind;
use crate::units::Bytes;

pub use checks::system;

/// This machine, as its node sees it.
#[derive(Debug)]
pub struct Machine {
    listen: IpAddr,
    limits: Limits,
    facts: Mutex<Option<(Instant, Facts)>>,
    interfaces: Mutex<Option<(Addrs, Vec<Interface>)>>,
    cables: Mutex<Option<(Instant, Vec<Cable>)>>,
}

/// What the user of a machine lets ranks take; none: what there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    /// The residency ceiling.
    pub ceiling_percent: Option<u8>,
}

/// Every address of every interface, as cheaply as the system gives them.
type Addrs = Vec<if_addrs::Interface>;

impl Machine {
    /// `listen` is where the node is reached: interfaces without it are of no use to others.
    pub fn new(listen: IpAddr, limits: Limits) -> Self {
        Self {
            listen,
            limits,
            facts: Mutex::default(),
            interfaces: Mutex::default(),
            cables: Mutex::default(),
        }
    }

    pub fn facts(&self) -> Facts {
        let facts = kept(&self.facts, FACTS_AGE_MAX, os::facts);
        let Limits { memory_bytes, ceiling_percent } = self.limits;
        Facts { memory_limit_bytes: memory_bytes, ceiling_percent, ..facts }
    }

    /// What `DAISY_MEMORY_FLOOR` says must stay available while ranks are here, as in `2GiB`.
    pub fn memory_floor() -> Option<u64> {
        let floor: Bytes = std::env::var("DAISY_MEMORY_FLOOR").ok()?.parse().ok()?;
        Some(floor.0)
    }

    /// Those on which the node is reached.
    pub fn interfaces(&self) -> Vec<Interface> {
        let mut known = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        // A machine that cannot list its addresses has none to offer.
        let addrs = if_addrs::get_if_addrs().unwrap_or_default();
        if known.as_ref().is_none_or(|(before, _)| *before != addrs) {
            let interfaces = os::interfaces(&addrs).into_iter().map(with_given_kind);
            let reached = interfaces.filter_map(|interface| reached(interface, self.listen));
            *known = Some((addrs, reached.take(INTERFACES_MAX).collect()));
        }
        known.as_ref().map(|(_, interfaces)| interfaces.clone()).unwrap_or_default()
    }

    /// To other machines.
    pub fn cables(&self) -> Vec<Cable> {
        kept(&self.cables, CABLES_AGE_MAX, os::cables)
    }
}

fn kept<T: Clone>(known: &Mutex<Option<(Instant, T)>>, age_max: Duration, read: fn() -> T) -> T {
    // Whoever else asks meanwhile waits for this reading.
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    match &*known {
        Some((at, value)) if at.elapsed() < age_max => value.clone(),
        _ => {
            let value = read();
            *known = Some((Instant::now(), value.clone()));
            value
        }
    }
}

/// `DAISY_INTERFACES` names kinds that a machine cannot know: a radio behind a cable, say.
fn with_given_kind(mut interface: Interface) -> Interface {
    let list = std::env::var("DAISY_INTERFACES").unwrap_or_default();
    if let Some(kind) = given_kind(&list, &interface.device.name) {
        interface.kind = kind;
    }
    interface
}

fn reached(mut interface: Interface, listen: IpAddr) -> Option<Interface> {
    interface.addrs.retain(|addr| listen.is_unspecified() || addr.ip == listen);
    interface.addrs.truncate(ADDRS_MAX);
    (!interface.addrs.is_empty()).then_some(interface)
}

#[cfg_attr(target_os = "macos", expect(dead_code, reason = "macOS tells them itself"))]
fn address(addr: &IfAddr) -> Address {
    match addr {
        IfAddr::V4(v4) => Address { ip: v4.ip.into(), prefix: v4.prefixlen },
        IfAddr::V6(v6) => Address { ip: v6.ip.into(), prefix: v6.prefixlen },
    }
}

/// Below the shortest interval at which anybody looks.
const FACTS_AGE_MAX: Duration = Duration::from_millis(400);
const CABLES_AGE_MAX: Duration = Duration::from_mins(1);
/// A control message holds 64 KiB: 32 × (name, index, kind, MTU, 8 × 18 bytes) take 6 KiB.
const INTERFACES_MAX: usize = 32;
const ADDRS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use daisy_proto::LinkKind;

    use super::*;

    #[test]
    fn this_machine_has_memory_and_loopback() {
        let limits = Limits { memory_bytes: Some(1 << 20), ceiling_percent: Some(50) };
        let machine = Machine::new(Ipv4Addr::UNSPECIFIED.into(), limits);
        let facts = machine.facts();
        assert!(facts.memory_bytes > 1 << 28 && facts.available_bytes <= facts.memory_bytes);
        assert_eq!(facts.spare_bytes(), 1 << 20, "the user's limit counts");
        assert_eq!(facts.ceiling_percent, Some(50));
        assert_eq!(machine.facts(), facts, "it is kept for a while");
        let interfaces = machine.interfaces();
        let loopback = interfaces.iter().find(|interface| interface.kind == LinkKind::Loopback);
        let loopback = loopback.expect("every machine has one");
        assert!(loopback.addrs.iter().any(|addr| addr.ip == IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(loopback.device.index > 0 && loopback.mtu > 0);
    }

    #[test]
    fn a_node_on_one_address_is_reached_there_alone() {
        let machine = Machine::new(Ipv4Addr::LOCALHOST.into(), Limits::default());
        let interfaces = machine.interfaces();
        let [only] = &interfaces[..] else { panic!("{interfaces:?}") };
        assert_eq!(only.addrs, [Address { ip: Ipv4Addr::LOCALHOST.into(), prefix: 8 }]);
        let nowhere = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        let nowhere = Machine::new(nowhere.into(), Limits::default());
        assert_eq!(nowhere.interfaces(), []);
    }
}
