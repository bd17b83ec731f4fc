//! What this node knows of every other one: paired or not, where it may be reached, whether it answers.
//! A state machine: time is an argument, dials and connections are its inputs. `H` is what an open
//! connection is held by. Start at [`Roster::due`] and [`Roster::view`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use daisy_proto::local::{PeerState, PeerStatus};
use daisy_proto::{NodeId, NodeName};

#[derive(Debug)]
pub(crate) struct Roster<H> {
    nodes: BTreeMap<NodeId, Known<H>>,
}

/// What multicast says of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighted {
    pub(crate) id: NodeId,
    pub(crate) name: NodeName,
    pub(crate) build: String,
    pub(crate) addrs: Vec<SocketAddr>,
    pub(crate) first_seen: Duration,
}

/// Why a node does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) state: PeerState,
    pub(crate) reason: String,
    pub(crate) remedy: Option<String>,
}

/// A node that answers.
#[derive(Debug, Clone)]
pub(crate) struct Ready<H> {
    pub(crate) id: NodeId,
    pub(crate) name: Option<NodeName>,
    pub(crate) addr: SocketAddr,
    pub(crate) handle: H,
}

#[derive(Debug)]
struct Known<H> {
    paired: bool,
    name: Option<NodeName>,
    build: Option<String>,
    /// Where it may be; the latest come first. Kept when the node is gone, to look for it there.
    addrs: Vec<SocketAddr>,
    is_sighted: bool,
    first_seen: Duration,
    last_heard: Option<Duration>,
    line: Line<H>,
}

#[derive(Debug)]
enum Line<H> {
    Idle { retry_at: Duration, failures: u32, fault: Option<Fault> },
    Dialling { failures: u32, fault: Option<Fault> },
    Open { addr: SocketAddr, handle: H },
}

impl<H> Default for Line<H> {
    fn default() -> Self {
        Self::Idle { retry_at: Duration::ZERO, failures: 0, fault: None }
    }
}

impl<H: Clone> Roster<H> {
    pub(crate) fn new() -> Self {
        Self { nodes: BTreeMap::new() }
    }

    /// Whom this node trusts now. Connections to others are dropped.
    pub(crate) fn set_paired(&mut self, paired: &[(NodeId, Option<NodeName>)], now: Duration) {
        for known in self.nodes.values_mut() {
            known.paired = false;
        }
        for (id, name) in paired {
            let known = self.entry(*id, now);
            known.paired = true;
            known.name = known.name.take().or_else(|| name.clone());
        }
        for known in self.nodes.values_mut() {
            // A node that was unpaired is a stranger from here on, there only while it is seen.
            if !known.paired && !matches!(known.line, Line::Idle { fault: None, failures: 0, .. }) {
                (known.line, known.last_heard) = (Line::default(), None);
            }
        }
        self.sweep(now);
    }

    /// All that multicast sees now.
    pub(crate) fn set_sighted(&mut self, sighted: Vec<Sighted>, now: Duration) {
        for known in self.nodes.values_mut() {
            known.is_sighted = false;
        }
        for Sighted { id, name, build, addrs, first_seen } in sighted {
            let known = self.entry(id, first_seen);
            known.is_sighted = true;
            (known.name, known.build) = (Some(name), Some(build));
            let is_news = addrs.iter().any(|addr| !known.addrs.contains(addr));
            if !addrs.is_empty() {
                known.addrs = addrs;
            }
            if let Line::Idle { retry_at, failures, .. } = &mut known.line
                && is_news
            {
                (*retry_at, *failures) = (now, 0);
            }
        }
        self.sweep(now);
    }

    /// The node at `addr` has just proved its key, or spoken: it is there, whether paired or not.
    pub(crate) fn heard(&mut self, id: NodeId, addr: SocketAddr, now: Duration) {
        let known = self.entry(id, now);
        known.last_heard = Some(now);
        if !known.addrs.contains(&addr) {
            known.addrs.insert(0, addr);
            known.addrs.truncate(ADDRS_MAX);
        }
        if matches!(known.line, Line::Idle { .. }) {
            known.line = Line::Idle { retry_at: now, failures: 0, fault: None };
        }
    }

    /// Paired nodes to dial now, with their candidates; each counts as being dialled from here on.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let mut due = Vec::new();
        for (id, known) in &mut self.nodes {
            if let Line::Idle { retry_at, failures, fault } = &mut known.line
                && known.paired
                && !known.addrs.is_empty()
                && *retry_at <= now
            {
                known.line = Line::Dialling { failures: *failures, fault: fault.take() };
                due.push((*id, known.addrs.clone()));
            }
        }
        due
    }

    /// False when the connection is not wanted: another one is open, or the node was unpaired.
    pub(crate) fn connected(
        &mut self,
        id: NodeId,
        addr: SocketAddr,
        build: &str,
        handle: H,
        now: Duration,
    ) -> bool {
        let known = self.entry(id, now);
        if !known.paired || matches!(known.line, Line::Open { .. }) {
            return false;
        }
        known.last_heard = Some(now);
        known.build = Some(build.to_owned());
        known.line = Line::Open { addr, handle };
        true
    }

    pub(crate) fn named(&mut self, id: &NodeId, name: NodeName) {
        if let Some(known) = self.nodes.get_mut(id) {
            known.name = Some(name);
        }
    }

    pub(crate) fn failed(&mut self, id: &NodeId, fault: Fault, now: Duration) {
        if let Some(known) = self.nodes.get_mut(id)
            && let Line::Dialling { failures, .. } = known.line
        {
            // One that answers and refuses does not change its mind by itself: when it is told of this
            // node's key it comes in.
            let wait =
                if fault.state == PeerState::Gone { backoff(failures) } else { REFUSED_INTERVAL };
            known.line = Line::Idle {
                retry_at: now + wait,
                failures: failures.saturating_add(1),
                fault: Some(fault),
            };
        }
    }

    /// The open connection ended.
    pub(crate) fn lost(&mut self, id: &NodeId, reason: String, now: Duration) {
        if let Some(known) = self.nodes.get_mut(id)
            && matches!(known.line, Line::Open { .. })
        {
            let fault = Fault { state: PeerState::Gone, reason, remedy: Some(REMEDY.to_owned()) };
            known.line = Line::Idle { retry_at: now, failures: 0, fault: Some(fault) };
        }
    }

    /// An open connection shows that its node is alive.
    pub(crate) fn touch_open(&mut self, now: Duration) {
        for known in self.nodes.values_mut() {
            if matches!(known.line, Line::Open { .. }) {
                known.last_heard = Some(now);
            }
        }
    }

    /// Drops what nobody has heard of for long.
    pub(crate) fn sweep(&mut self, now: Duration) {
        let is_fresh = |at: Duration| now.saturating_sub(at) < STRANGER_KEPT;
        self.nodes.retain(|_, known| {
            known.paired || known.is_sighted || known.last_heard.is_some_and(is_fresh)
        });
    }

    pub(crate) fn ready(&self) -> Vec<Ready<H>> {
        let ready = self.nodes.iter().filter_map(|(id, known)| match &known.line {
            Line::Open { addr, handle } => Some(Ready {
                id: *id,
                name: known.name.clone(),
                addr: *addr,
                handle: handle.clone(),
            }),
            _ => None,
        });
        ready.collect()
    }

    /// Whether every paired node answers, or has failed to. Just after the start one that was not seen
    /// yet may still be.
    pub(crate) fn is_settled(&self, has_just_started: bool) -> bool {
        let settled = |known: &Known<H>| match &known.line {
            Line::Open { .. } => true,
            Line::Idle { fault, .. } | Line::Dialling { fault, .. } => {
                fault.is_some() || (known.addrs.is_empty() && !has_just_started)
            }
        };
        self.nodes.values().all(|known| !known.paired || settled(known))
    }

    /// Nodes that may want to be paired: strangers, and those that do not know this node's key.
    pub(crate) fn pairable(&self) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let is_open = |known: &Known<H>| matches!(known.line, Line::Open { .. });
        let pairable =
            |(_, known): &(&NodeId, &Known<H>)| !is_open(known) && !known.addrs.is_empty();
        self.nodes.iter().filter(pairable).map(|(id, known)| (*id, known.addrs.clone())).collect()
    }

    /// Every node, the paired ones first.
    pub(crate) fn view(&self, now: Duration) -> Vec<PeerStatus> {
        let mut rows: Vec<PeerStatus> =
            self.nodes.iter().map(|(id, known)| row(*id, known, now)).collect();
        rows.sort_by_key(|row| (!row.paired, row.name.clone(), row.id));
        rows
    }

    fn entry(&mut self, id: NodeId, now: Duration) -> &mut Known<H> {
        self.nodes.entry(id).or_insert_with(|| Known {
            paired: false,
            name: None,
            build: None,
            addrs: Vec::new(),
            is_sighted: false,
            first_seen: now,
            last_heard: None,
            line: Line::default(),
        })
    }
}

fn row<H>(id: NodeId, known: &Known<H>, now: Duration) -> PeerStatus {
    let since = |at: Duration| u64::try_from(now.saturating_sub(at).as_millis()).ok();
    let (state, fault) = match &known.line {
        _ if !known.paired => (PeerState::Unpaired, None),
        Line::Open { .. } => (PeerState::Ready, None),
        Line::Idle { fault: Some(fault), .. } | Line::Dialling { fault: Some(fault), .. } => {
            (fault.state, Some(fault.clone()))
        }
        Line::Idle { .. } | Line::Dialling { .. } if !known.addrs.is_empty() => {
            (PeerState::Connecting, None)
        }
        _ => {
            let reason = "not seen since this node started".to_owned();
            let remedy = Some(REMEDY.to_owned());
            (PeerState::Gone, Some(Fault { state: PeerState::Gone, reason, remedy }))
        }
    };
    let (reason, mut remedy) = fault.map_or((None, None), |f| (Some(f.reason), f.remedy));
    if !known.paired {
        remedy = Some("daisy cluster pair".to_owned());
    }
    PeerStatus {
        id,
        name: known.name.clone(),
        build: known.build.clone(),
        paired: known.paired,
        state,
        addr: match &known.line {
            Line::Open { addr, .. } => Some(*addr),
            _ => known.addrs.first().copied(),
        },
        // The caller knows this machine's interfaces.
        interface: None,
        age_ms: if known.paired {
            known.last_heard.and_then(since)
        } else {
            since(known.first_seen)
        },
        reason,
        remedy,
        // The survey knows its machine and the link to it.
        facts: None,
        link: None,
    }
}

/// 0.25 s, twice as long each time, at most 5 s.
fn backoff(failures: u32) -> Duration {
    (Duration::from_millis(250) * (1 << failures.min(6))).min(Duration::from_secs(5))
}

const REMEDY: &str = "check that `daisy cluster up` runs there, and the cable";
/// An unpaired node that multicast does not see is forgotten this long after its last word.
const STRANGER_KEPT: Duration = Duration::from_mins(2);
const REFUSED_INTERVAL: Duration = Duration::from_secs(10);
const ADDRS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId([1; 32]);
    const B: NodeId = NodeId([2; 32]);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn addr(n: u8) -> SocketAddr {
        ([10, 0, 0, n], 9).into()
    }

    fn sighted(id: NodeId, addrs: &[SocketAddr], now: Duration) -> Sighted {
        let name = NodeName::new("mini").expect("a name");
        Sighted {
            id,
            name,
            build: "daisy 0.1.0".to_owned(),
            addrs: addrs.to_vec(),
            first_seen: now,
        }
    }

    fn gone(reason: &str) -> Fault {
        Fault { state: PeerState::Gone, reason: reason.to_owned(), remedy: None }
    }

    fn only(roster: &Roster<u8>, now: Duration) -> PeerStatus {
        let rows = roster.view(now);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        row.clone()
    }

    #[test]
    fn a_paired_node_is_dialled_when_it_is_seen_and_kept_when_it_vanishes() {
        let mut roster = Roster::new();
        roster.set_paired(&[(A, None)], s(0));
        assert_eq!(only(&roster, s(0)).state, PeerState::Gone);
        assert!(roster.due(s(0)).is_empty(), "nobody knows where it is");
        assert!(roster.is_settled(false) && !roster.is_settled(true));
        roster.set_sighted(vec![sighted(A, &[addr(1), addr(2)], s(1))], s(1));
        assert_eq!(only(&roster, s(1)).state, PeerState::Connecting);
        assert_eq!(roster.due(s(1)), [(A, vec![addr(1), addr(2)])]);
        assert!(roster.due(s(1)).is_empty(), "it is dialled already");
        assert!(!roster.is_settled(false));
        assert!(roster.connected(A, addr(2), "daisy 0.1.0", 7, s(2)));
        assert!(!roster.connected(A, addr(1), "daisy 0.1.0", 8, s(2)), "one connection is enough");
        assert_eq!(roster.ready().iter().map(|r| r.handle).collect::<Vec<_>>(), [7]);
        assert_eq!(only(&roster, s(2)).addr, Some(addr(2)));
        assert!(roster.is_settled(true));

        roster.touch_open(s(9));
        roster.lost(&A, "silence".to_owned(), s(10));
        roster.set_sighted(Vec::new(), s(10));
        let row = only(&roster, s(300));
        assert_eq!((row.state, row.age_ms), (PeerState::Gone, Some(291_000)));
        assert_eq!(row.reason.as_deref(), Some("silence"));
        assert!(row.remedy.is_some());
        // It is looked for where it was, ever more seldom.
        let mut tries = Vec::new();
        for now in (0..400).map(|tenth| s(300) + Duration::from_millis(100 * tenth)) {
            if !roster.due(now).is_empty() {
                tries.push(now);
                roster.failed(&A, gone("nothing answers"), now);
            }
        }
        assert!((8..=14).contains(&tries.len()), "{tries:?}");
        assert_eq!(only(&roster, s(400)).reason.as_deref(), Some("nothing answers"));
    }

    #[test]
    fn a_new_address_is_tried_at_once() {
        let mut roster: Roster<u8> = Roster::new();
        roster.set_paired(&[(A, None)], s(0));
        roster.set_sighted(vec![sighted(A, &[addr(1)], s(0))], s(0));
        for n in 0..6 {
            roster.due(s(n * 10));
            roster.failed(&A, gone("no"), s(n * 10));
        }
        assert!(roster.due(s(51)).is_empty());
        roster.set_sighted(vec![sighted(A, &[addr(1)], s(0))], s(51));
        assert!(roster.due(s(51)).is_empty(), "no news");
        roster.set_sighted(vec![sighted(A, &[addr(3)], s(0))], s(52));
        assert_eq!(roster.due(s(52)), [(A, vec![addr(3)])], "the old address is not dialled");
        roster.failed(&A, gone("no"), s(52));
        roster.heard(A, addr(4), s(52));
        assert_eq!(roster.due(s(52)), [(A, vec![addr(4), addr(3)])], "it came in from there");
    }

    #[test]
    fn strangers_are_shown_with_their_age_never_dialled_and_forgotten() {
        let mut roster: Roster<u8> = Roster::new();
        roster.set_sighted(vec![sighted(A, &[addr(1)], s(3))], s(3));
        let row = only(&roster, s(10));
        assert_eq!((row.paired, row.state, row.age_ms), (false, PeerState::Unpaired, Some(7000)));
        assert_eq!(row.remedy.as_deref(), Some("daisy cluster pair"));
        assert!(roster.due(s(10)).is_empty() && roster.is_settled(true));
        assert_eq!(roster.pairable(), [(A, vec![addr(1)])]);
        assert!(!roster.connected(A, addr(1), "", 1, s(10)), "it is not trusted");
        roster.set_sighted(Vec::new(), s(11));
        assert!(roster.view(s(11)).is_empty(), "it said goodbye");
        roster.heard(B, addr(2), s(20));
        roster.sweep(s(139));
        assert_eq!(roster.view(s(139)).len(), 1);
        roster.sweep(s(140));
        assert!(roster.view(s(140)).is_empty());
    }

    #[test]
    fn unpairing_drops_the_connection_at_once() {
        let mut roster = Roster::new();
        roster.set_paired(&[(A, None), (B, None)], s(0));
        for (id, n) in [(A, 1), (B, 2)] {
            roster.heard(id, addr(n), s(0));
            roster.due(s(0));
            assert!(roster.connected(id, addr(n), "", n, s(0)));
        }
        roster.set_paired(&[(B, None)], s(1));
        assert_eq!(roster.ready().iter().map(|ready| ready.id).collect::<Vec<_>>(), [B]);
        let states: Vec<_> = roster.view(s(1)).iter().map(|row| (row.id, row.state)).collect();
        assert_eq!(states, [(B, PeerState::Ready)], "nobody sees A");
    }
}
