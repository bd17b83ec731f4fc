//! What is wrong with this machine and its links, each with one remedy, concluded from what was seen.
//!
//! Pure: the node and the `machine` adapter look, this module judges, the command line shows. A finding
//! needs evidence; what could not be seen is never one. Start at [`findings`].

use core::net::SocketAddr;

use daisy_proto::control::NodeFacts;
use daisy_proto::local::{Finding, PeerSurvey, Unreached};
use daisy_proto::{Interface, LinkKind, NodeId};

use crate::facts::loops;
use crate::facts::ports::Service;
use crate::facts::route::Route;
use crate::links::{self, figures};
use crate::units::Bytes;

/// What only the system tells.
#[derive(Debug, Clone, Default)]
pub struct System {
    pub is_mac: bool,
    /// Path of this program.
    pub program: String,
    pub firewall: Firewall,
    /// Signs of a ring of bridges, from this machine's own bridges.
    pub rings: Vec<String>,
    /// Network services of Thunderbolt devices that are switched off.
    pub services_off: Vec<Service>,
    /// How the system would send to each peer that was named by address; none where it says nothing.
    pub routes: Vec<(SocketAddr, Option<Route>)>,
    /// On the volume of the home.
    pub free_bytes: Option<u64>,
    pub open_files_max: Option<u64>,
    /// Paths of models that this program cannot read, with the reason.
    pub unreadable: Vec<(String, String)>,
    /// Seconds since 1970.
    pub unix_s: u64,
}

/// The firewall that decides per program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Firewall {
    /// None of this kind, or it lets this program through.
    #[default]
    Open,
    /// On, and this program has no entry: it asks, and where nobody sits it refuses.
    Asks,
    BlocksThis,
    BlocksAll,
}

impl Firewall {
    /// From `socketfilterfw --getglobalstate`, `--getblockall` and `--getappblocked PROGRAM`.
    pub fn parse(state: &str, block_all: &str, program: &str) -> Self {
        let program = program.to_ascii_lowercase();
        if !state.contains("State = 1") && !state.contains("State = 2") {
            Self::Open
        } else if state.contains("State = 2")
            || block_all.contains("set to block all")
            || block_all.contains("ENABLED")
        {
            Self::BlocksAll
        } else if program.contains("not part of the firewall") {
            Self::Asks
        } else if program.contains("block") && !program.contains("permitted") {
            Self::BlocksThis
        } else {
            Self::Open
        }
    }
}

/// Everything that is wrong, the worst first.
pub fn findings(
    me: NodeId,
    own: &NodeFacts,
    peers: &[PeerSurvey],
    unreached: &[Unreached],
    system: &System,
) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(rings(own, peers, system));
    found.extend(unreached.iter().map(|peer| not_reached(peer, system)));
    found.extend(cable_without_interface(own, system));
    for peer in peers {
        found.extend(link(me, own, peer));
    }
    found.extend(of_machine(system));
    found
}

fn rings(own: &NodeFacts, peers: &[PeerSurvey], system: &System) -> Vec<Finding> {
    let remedy =
        "pull one of the cables of the ring: bridges of Thunderbolt ports have no loop protection";
    if let Some(sign) = system.rings.first() {
        return vec![finding(format!("Thunderbolt cables form a ring: {sign}"), remedy)];
    }
    let has_bridge = |facts: &&NodeFacts| {
        let is_bridge =
            |interface: &Interface| matches!(interface.kind, LinkKind::ThunderboltBridge { .. });
        facts.interfaces.iter().any(is_bridge)
    };
    let all = std::iter::once(own).chain(peers.iter().filter_map(|peer| peer.facts.as_ref()));
    let bridged =
        all.filter(has_bridge).map(|facts| (facts.name.to_string(), facts.cables.clone()));
    let ring = loops::closing_cable(&bridged.collect::<Vec<_>>());
    ring.map(|(name, cable)| {
        let what = format!(
            "Thunderbolt cables form a ring, by way of port {} of `{name}`",
            cable.receptacle
        );
        finding(what, remedy)
    })
    .into_iter()
    .collect()
}

fn firewall(system: &System) -> Option<Finding> {
    let program = &system.program;
    let allow = format!(
        "sudo /usr/libexec/ApplicationFirewall/socketfilterfw --add '{program}' --unblockapp '{program}'"
    );
    match system.firewall {
        Firewall::Open => None,
        Firewall::Asks => {
            Some(finding("the firewall is on and does not know this program", &allow))
        }
        Firewall::BlocksThis => Some(finding("the firewall blocks this program", &allow)),
        Firewall::BlocksAll => Some(finding(
            "the firewall blocks all incoming connections",
            "switch `Block all incoming connections` off in System Settings > Network > Firewall > Options",
        )),
    }
}

/// "No route to host" has at least three causes; the route tells them apart.
fn not_reached(peer: &Unreached, system: &System) -> Finding {
    let addr = peer.addr;
    // What could not be done says what helps behind a semicolon.
    let (fault, advice) = peer.fault.split_once("; ").unwrap_or((&peer.fault, ""));
    let what = format!("{addr} is not reached: {fault}");
    let is_denied = peer.fault.contains("No route to host") || peer.fault.contains("os error 65");
    let route = system.routes.iter().find(|(known, _)| *known == addr).map(|(_, route)| route);
    let remedy = match route {
        Some(Some(route)) if route.is_rejected => format!(
            "the system refuses to send to {} over {}: give the networks of its interfaces different addresses",
            addr.ip(), route.interface
        ),
        Some(Some(route)) if route.is_stale => format!(
            "nothing answered on {} for a while: check the cable and that the other machine is on",
            route.interface
        ),
        Some(Some(_)) if system.is_mac && is_denied => "allow Local Network for the program that started this node, in System Settings > Privacy & Security, or start it from Terminal or over SSH".to_owned(),
        Some(None) if system.is_mac => format!(
            "no route leads to {}: check the cable, and the address given by --peer", addr.ip()
        ),
        _ if !advice.is_empty() => advice.to_owned(),
        _ => format!(
            "check that `daisy cluster up` runs there, and that UDP port {} is not blocked on the way",
            addr.port()
        ),
    };
    finding(what, &remedy)
}

fn cable_without_interface(own: &NodeFacts, system: &System) -> Option<Finding> {
    let cable = own.cables.first()?;
    let is_used = own.interfaces.iter().any(|interface| {
        matches!(
            interface.kind,
            LinkKind::ThunderboltBridge { .. } | LinkKind::ThunderboltPort { .. }
        )
    });
    if is_used {
        return None;
    }
    let what = format!(
        "a cable to another Mac is in Thunderbolt port {}, but no interface uses it",
        cable.receptacle
    );
    let remedy = match system.services_off.first() {
        Some(service) => {
            format!("make the service `{}` active in System Settings > Network", service.name)
        }
        None => "add the service `Thunderbolt Bridge` in System Settings > Network".to_owned(),
    };
    Some(finding(what, &remedy))
}

fn link(me: NodeId, own: &NodeFacts, peer: &PeerSurvey) -> Option<Finding> {
    let (facts, link) = (peer.facts.as_ref()?, peer.link.as_ref()?);
    let name = &facts.name;
    let one_way = link
        .paths
        .iter()
        .find(|path| path.trials.iter().filter(|trial| trial.is_ok()).count() == 1);
    let best = link.paths.first().filter(|path| figures(path).is_some());
    let Some(best) = best else {
        let what = format!("no pair of addresses leads to `{name}` from both ends");
        let remedy = match one_way {
            Some(path) => {
                let (here, there) = links::ends(link, path, me);
                let is_ours = path.trials[usize::from(link.nodes[0] != me)].is_ok();
                let closed = if is_ours { "this machine" } else { name.as_str() };
                format!(
                    "{} - {} works in one direction: open the firewall of {closed} for UDP",
                    here.device.name, there.device.name
                )
            }
            None => "join the two by a cable, or open their firewalls for UDP".to_owned(),
        };
        return Some(finding(what, &remedy));
    };
    let (here, there) = links::ends(link, best, me);
    let mtu = |facts: &NodeFacts, device: &str| {
        let interface = facts.interfaces.iter().find(|known| known.device.name == device)?;
        Some(interface.mtu)
    };
    let (ours, theirs) = (mtu(own, &here.device.name)?, mtu(facts, &there.device.name)?);
    (ours != theirs && here.ip != there.ip).then(|| {
        let what = format!(
            "{} has an MTU of {ours} here, {} one of {theirs} on `{name}`: large packets get lost",
            here.device.name, there.device.name
        );
        finding(what, "set both to the same MTU")
    })
}

/// What is wrong with the machine alone.
pub fn of_machine(system: &System) -> Vec<Finding> {
    let mut found: Vec<Finding> = firewall(system).into_iter().collect();
    for (path, why) in &system.unreadable {
        let remedy =
            format!("make it readable for the user that runs the node: chmod -R u+rX '{path}'");
        found.push(finding(format!("the model {path} cannot be read: {why}"), &remedy));
    }
    if let Some(free) = system.free_bytes.filter(|free| *free < FREE_BYTES_MIN) {
        let what = format!("{} are left on the volume of Daisy's home", Bytes(free));
        found.push(finding(what, "free some space: logs and models need it"));
    }
    if let Some(most) = system.open_files_max.filter(|most| *most < OPEN_FILES_MIN) {
        let what = format!("the node may open {most} files at a time");
        found.push(finding(what, "start it after `ulimit -n 8192`"));
    }
    if system.unix_s < CLOCK_MIN_UNIX_S {
        found.push(finding(
            "the clock of this machine is years behind",
            "set it, by hand or by NTP",
        ));
    }
    found
}

fn finding(what: impl Into<String>, remedy: &str) -> Finding {
    Finding { what: what.into(), remedy: remedy.to_owned() }
}

const FREE_BYTES_MIN: u64 = 1 << 30;
/// Sockets of clients and peers, files of a model.
const OPEN_FILES_MIN: u64 = 1024;
/// 2026-01-01, before any release.
const CLOCK_MIN_UNIX_S: u64 = 1_767_225_600;

#[cfg(test)]
mod tests {
    use daisy_proto::{Address, Cable, Device, Facts, NodeLink, Path, PathEnd, Sample};

    use super::*;

    const ME: NodeId = NodeId([1; 32]);
    const OTHER: NodeId = NodeId([2; 32]);

    fn facts(name: &str, mtu: u32, kind: LinkKind, cables: Vec<Cable>) -> NodeFacts {
        let device = Device { name: "bridge0".to_owned(), index: 1 };
        let addrs = vec![Address { ip: [10, 0, 0, 1].into(), prefix: 24 }];
        NodeFacts {
            name: daisy_proto::NodeName::new(name).expect("a name"),
            facts: Facts::default(),
            interfaces: vec![Interface { device, kind, mtu, addrs }],
            cables,
            control_port: 1,
            probe_port: 2,
        }
    }

    fn cable(own: &str, peer: &str) -> Cable {
        Cable { receptacle: 2, own_domain: own.into(), peer_domain: peer.into(), gbit_per_s: None }
    }

    fn peer(facts: NodeFacts, works: [bool; 2]) -> PeerSurvey {
        let sample =
            Sample { rtt_median_us: 300, rtt_worst_us: 400, probes: 51, bit_per_s: 20_000_000_000 };
        let end = |last| PathEnd {
            device: Device { name: "bridge0".to_owned(), index: 1 },
            kind: BRIDGE,
            ip: [10, 0, 0, last].into(),
        };
        let trials = works.map(|works| if works { Ok(sample) } else { Err("no answer".into()) });
        let path = Path { ends: [end(1), end(2)], trials };
        let link = NodeLink { nodes: [ME, OTHER], round: 1, paths: vec![path] };
        PeerSurvey { id: OTHER, facts: Some(facts), link: Some(link), lost: None }
    }

    fn good() -> System {
        System { unix_s: CLOCK_MIN_UNIX_S, is_mac: true, ..System::default() }
    }

    const BRIDGE: LinkKind = LinkKind::ThunderboltBridge { gbit_per_s: None };

    fn only(
        own: &NodeFacts,
        peers: &[PeerSurvey],
        unreached: &[Unreached],
        system: &System,
    ) -> (String, String) {
        let found = findings(ME, own, peers, unreached, system);
        let [Finding { what, remedy }] = &found[..] else { panic!("{found:?}") };
        (what.clone(), remedy.clone())
    }

    #[test]
    fn a_good_machine_has_no_findings() {
        let own = facts("studio", 1500, BRIDGE, vec![cable("a1", "b1")]);
        let peers = [peer(facts("mini", 1500, BRIDGE, vec![cable("b1", "a1")]), [true, true])];
        assert_eq!(findings(ME, &own, &peers, &[], &good()), []);
    }

    #[test]
    fn each_fault_of_a_link_has_its_remedy() {
        let own = || facts("studio", 1500, BRIDGE, Vec::new());
        let mini = |mtu| facts("mini", mtu, BRIDGE, Vec::new());
        for (peer, what, remedy) in [
            (peer(mini(9000), [true, true]), "MTU of 1500 here", "same MTU"),
            (peer(mini(1500), [true, false]), "from both ends", "firewall of this machine"),
            (peer(mini(1500), [false, true]), "from both ends", "firewall of mini"),
            (peer(mini(1500), [false, false]), "from both ends", "by a cable"),
        ] {
            let (found, helps) = only(&own(), &[peer], &[], &good());
            assert!(found.contains(what) && helps.contains(remedy), "{found}: {helps}");
        }
        let ring = [
            peer(
                facts("mini", 1500, BRIDGE, vec![cable("b1", "a1"), cable("b2", "c1")]),
                [true, true],
            ),
            peer(
                facts("air", 1500, BRIDGE, vec![cable("c1", "b2"), cable("c2", "a2")]),
                [true, true],
            ),
        ];
        let own = facts("studio", 1500, BRIDGE, vec![cable("a1", "b1"), cable("a2", "c2")]);
        let (found, helps) = only(&own, &ring, &[], &good());
        assert!(found.contains("form a ring") && helps.contains("pull one"), "{found}: {helps}");
    }

    #[test]
    fn no_route_to_host_is_told_apart_by_the_route() {
        let own = facts("studio", 1500, BRIDGE, Vec::new());
        let addr = SocketAddr::from(([169, 254, 87, 20], 51738));
        let fault = "no node answers (No route to host (os error 65))".to_owned();
        let unreached = [Unreached { addr, fault }];
        let route = |is_rejected, is_stale| {
            Some(Route { interface: "bridge0".into(), gateway: None, is_rejected, is_stale })
        };
        for (route, remedy) in [
            (route(false, false), "allow Local Network"),
            (route(true, true), "different addresses"),
            (route(false, true), "check the cable and that"),
            (None, "no route leads to 169.254.87.20"),
        ] {
            let system = System { routes: vec![(addr, route)], ..good() };
            let (_, helps) = only(&own, &[], &unreached, &system);
            assert!(helps.contains(remedy), "{helps}");
        }
        let linux = System { is_mac: false, ..good() };
        let (_, helps) = only(&own, &[], &unreached, &linux);
        assert!(helps.contains("UDP port 51738"), "{helps}");
    }

    #[test]
    fn each_fault_of_a_machine_has_its_remedy() {
        let own = facts("studio", 1500, BRIDGE, Vec::new());
        for (system, what, remedy) in [
            (System { free_bytes: Some(1 << 29), ..good() }, "0.5 GiB are left", "free some"),
            (System { open_files_max: Some(256), ..good() }, "256 files", "ulimit -n"),
            (System { unix_s: 0, ..good() }, "clock", "set it"),
            (System { unreadable: vec![("/m".into(), "denied".into())], ..good() }, "/m", "chmod"),
            (System { rings: vec!["bridge0 hears itself".into()], ..good() }, "ring", "pull"),
            (System { firewall: Firewall::BlocksAll, ..good() }, "blocks all", "Firewall"),
            (
                System { firewall: Firewall::Asks, program: "/x".into(), ..good() },
                "know",
                "--add '/x'",
            ),
        ] {
            let (found, helps) = only(&own, &[], &[], &system);
            assert!(found.contains(what) && helps.contains(remedy), "{found}: {helps}");
        }
        let wifi = facts("studio", 1500, LinkKind::WiFi, vec![cable("a1", "b1")]);
        let off =
            Service { name: "雷雳网桥".into(), device: "bridge0".into(), is_enabled: false };
        for (services_off, remedy) in
            [(vec![off], "make the service `雷雳网桥`"), (vec![], "add the")]
        {
            let (found, helps) = only(&wifi, &[], &[], &System { services_off, ..good() });
            assert!(found.contains("port 2") && helps.contains(remedy), "{found}: {helps}");
        }
    }

    #[test]
    fn the_firewall_is_read_from_its_three_answers() {
        let on = "Firewall is enabled. (State = 1)";
        let permitted = "Incoming connection to the application is permitted";
        for (state, all, program, expected) in [
            ("Firewall is disabled. (State = 0)", "", "", Firewall::Open),
            ("", "", "", Firewall::Open),
            (on, "Block all DISABLED!", permitted, Firewall::Open),
            (
                on,
                "Block all DISABLED!",
                "Incoming connection to the application is blocked",
                Firewall::BlocksThis,
            ),
            (
                on,
                "Block all DISABLED!",
                "The application is not part of the firewall",
                Firewall::Asks,
            ),
            (
                on,
                "Firewall is set to block all non-essential incoming connections",
                permitted,
                Firewall::BlocksAll,
            ),
            ("Firewall is blocking all (State = 2)", "", permitted, Firewall::BlocksAll),
        ] {
            assert_eq!(Firewall::parse(state, all, program), expected, "{state} {all} {program}");
        }
    }
}
