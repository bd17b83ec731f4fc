//! Keeps a connection to every paired node that can be found, and knows how the others are. One task
//! owns the search ([`crate::discovery`], addresses given by hand) and the dials; what is known lies in a
//! [`Roster`]. A node's liveness is that of its connection: silence of 3.5 s ends it.
//! Start at [`Neighbours::run`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use daisy_proto::control::{Request, Response};
use daisy_proto::local::{PeerState, PeersView, Refusal, RefusalKind, Unreached};
use daisy_proto::{NodeId, NodeName};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Node;
use super::peers::{Peer, PeerEvent};
use super::roster::{Fault, Ready, Roster, Sighted};
use super::survey;
use crate::discovery::{Seen, interface_towards, interfaces};
use crate::identity::PeerList;
use crate::links;
use crate::net::{ControlConnection, DialError};

/// What this node knows of the others; shared with whoever asks.
#[derive(Debug)]
pub(crate) struct Neighbours {
    roster: Mutex<Roster<Peer>>,
    began: Instant,
    news: watch::Sender<u64>,
    kick: Notify,
    seen: Mutex<Arc<Seen>>,
    /// Addresses given by hand, and what was wrong with each when it was last dialled.
    by_hand: Mutex<HashMap<SocketAddr, Option<DialFault>>>,
}

#[derive(Debug, Clone)]
struct DialFault {
    message: String,
}

/// What became of a dial.
enum Dialled {
    Node(NodeId, Option<Result<ControlConnection, DialError>>),
    Address(SocketAddr, Result<ControlConnection, DialError>),
}

/// From a connection that is held.
enum Heard {
    Named(NodeId, NodeName),
    Lost(NodeId, String),
}

impl Neighbours {
    pub(crate) fn new() -> Self {
        Self {
            roster: Mutex::new(Roster::new()),
            began: Instant::now(),
            news: watch::Sender::new(0),
            kick: Notify::new(),
            seen: Mutex::default(),
            by_hand: Mutex::default(),
        }
    }

    /// A trusted node came in from `addr`: that is where it is.
    pub(crate) fn came_in(&self, id: NodeId, addr: SocketAddr) {
        self.roster().heard(id, addr, self.now());
        self.kick.notify_one();
    }

    /// The list of trusted nodes has changed: look now.
    pub(crate) fn trust_changed(&self) {
        self.kick.notify_one();
    }

    /// The paired nodes that answer now.
    pub(crate) fn ready(&self) -> Vec<Ready<Peer>> {
        self.roster().ready()
    }

    /// Nodes that could be paired, with where they may be.
    pub(crate) fn pairable(&self) -> Vec<(NodeId, Vec<SocketAddr>)> {
        self.roster().pairable()
    }

    /// Addresses given by hand that lead to no node.
    pub(crate) fn unreached(&self) -> Vec<Unreached> {
        let by_hand = lock(&self.by_hand);
        let mut unreached: Vec<_> = by_hand
            .iter()
            .filter_map(|(addr, fault)| Some((*addr, fault.as_ref()?.message.clone())))
            .map(|(addr, fault)| Unreached { addr, fault })
            .collect();
        unreached.sort_by_key(|unreached| unreached.addr);
        unreached
    }

    /// Waits until every paired node answers or has failed to, or a node that has just started has
    /// looked for long enough.
    pub(crate) async fn settled(&self) {
        let mut news = self.news.subscribe();
        let left = SETTLED_AFTER.saturating_sub(self.began.elapsed());
        let settled = async {
            while !self.roster().is_settled(self.began.elapsed() < SETTLED_AFTER) {
                if news.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(left.max(DIALLED_AFTER), settled).await;
    }

    /// For `daisy cluster peers`.
    pub(crate) fn view(&self, node: &Node) -> PeersView {
        let mut peers = self.roster().view(self.now());
        for peer in &mut peers {
            peer.interface = peer.addr.and_then(interface_towards);
            let known = node.survey.of(&peer.id).unwrap_or_default();
            peer.facts = known.facts.map(|facts| facts.facts);
            if let (PeerState::Ready, Some(link)) = (peer.state, known.link) {
                peer.link = links::status(&link, node.identity.node_id());
            }
        }
        let seen = Arc::clone(&lock(&self.seen));
        let mut faults = Vec::new();
        if let Some(addrs) = &seen.copy {
            faults.push(copied(addrs));
        }
        faults.extend(node.discovery_fault.clone());
        for fault in lock(&self.by_hand).values().flatten() {
            let (message, hints) = (fault.message.clone(), Vec::new());
            faults.push(Refusal { message, hints, kind: RefusalKind::NotReachable });
        }
        let listen = node.control.local_addr().ip();
        let interfaces =
            if node.discovery_fault.is_some() { Vec::new() } else { interfaces(listen) };
        PeersView { peers, interfaces, hidden: seen.hidden, faults }
    }

    /// Finds, dials and holds until the node stops.
    pub(crate) async fn run(&self, node: &Arc<Node>, mut seen: watch::Receiver<Arc<Seen>>) {
        let mut list = PeerList::new(&node.home);
        let mut dials: JoinSet<Dialled> = JoinSet::new();
        let mut by_hand: HashMap<SocketAddr, ByHand> =
            node.peers.iter().map(|addr| (*addr, ByHand::default())).collect();
        let (heard_in, mut heard) = mpsc::channel(HEARD_MAX);
        let mut ticks = tokio::time::interval(TICK);
        let mut copy_told = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.kick.notified() => {}
                Ok(()) = seen.changed() => {
                    let now = Arc::clone(&seen.borrow_and_update());
                    if now.copy.is_some() && !copy_told {
                        copy_told = true;
                        let addrs = now.copy.clone().unwrap_or_default();
                        tracing::error!("{}", copied(&addrs).message);
                    }
                    self.roster().set_sighted(sightings(&now), self.now());
                    *lock(&self.seen) = now;
                }
                Some(heard) = heard.recv() => match heard {
                    Heard::Named(id, name) => self.roster().named(&id, name),
                    Heard::Lost(id, reason) => {
                        tracing::info!(peer = %id.short(), reason, "a peer is gone");
                        self.roster().lost(&id, reason, self.now());
                    }
                },
                Some(Ok(dialled)) = dials.join_next() => {
                    self.dialled(node, dialled, &mut by_hand, &heard_in);
                }
                () = node.stopping() => return,
            }
            if list.refresh() {
                let paired: Vec<_> =
                    list.now().iter().map(|peer| (peer.id, peer.name.clone())).collect();
                // Before the roster lets go of them: they are to hear why.
                for id in node.control.close_untrusted() {
                    tracing::info!(peer = %id.short(), "unpaired: its connection was closed");
                }
                self.roster().set_paired(&paired, self.now());
                for hand in by_hand.values_mut() {
                    hand.retry_at = self.now();
                }
            }
            self.dial_due(node, &mut dials, &mut by_hand);
            self.news.send_modify(|news| *news += 1);
        }
    }

    fn dial_due(
        &self,
        node: &Arc<Node>,
        dials: &mut JoinSet<Dialled>,
        by_hand: &mut HashMap<SocketAddr, ByHand>,
    ) {
        let now = self.now();
        let (due, open) = {
            let mut roster = self.roster();
            roster.touch_open(now);
            roster.sweep(now);
            let open: Vec<NodeId> = roster.ready().iter().map(|ready| ready.id).collect();
            (roster.due(now), open)
        };
        for (id, addrs) in due {
            let node = Arc::clone(node);
            dials.spawn(async move {
                Dialled::Node(id, node.control.dial_node(id, &addrs, DIAL_MAX).await)
            });
        }
        for (addr, hand) in by_hand {
            let is_needed = hand.id.is_none_or(|id| !open.contains(&id));
            if !is_needed {
                // It is reached, by this address or another one.
                lock(&self.by_hand).insert(*addr, None);
            }
            if is_needed && !hand.is_dialled && hand.retry_at <= now {
                hand.is_dialled = true;
                let (node, addr) = (Arc::clone(node), *addr);
                dials.spawn(async move {
                    Dialled::Address(addr, node.control.dial(addr, DIAL_MAX).await)
                });
            }
        }
    }

    fn dialled(
        &self,
        node: &Arc<Node>,
        dialled: Dialled,
        by_hand: &mut HashMap<SocketAddr, ByHand>,
        heard: &mpsc::Sender<Heard>,
    ) {
        let now = self.now();
        match dialled {
            Dialled::Node(_, Some(Ok(connection))) => self.hold(node, connection, heard),
            Dialled::Node(id, outcome) => {
                let reason = match outcome {
                    Some(Err(error)) => fault_of(&error),
                    _ => fault("it has no address".to_owned()),
                };
                self.roster().failed(&id, reason, now);
            }
            Dialled::Address(addr, outcome) => {
                let Some(hand) = by_hand.get_mut(&addr) else { return };
                hand.is_dialled = false;
                hand.retry_at = now + BY_HAND_INTERVAL;
                let fault = match outcome {
                    Ok(connection) => {
                        hand.id = Some(connection.peer);
                        self.roster().heard(connection.peer, addr, now);
                        self.hold(node, connection, heard);
                        None
                    }
                    // It is there, and shown as unpaired.
                    Err(DialError::Untrusted { peer, .. }) => {
                        self.roster().heard(peer, addr, now);
                        None
                    }
                    Err(error) => Some(DialFault { message: error.to_string() }),
                };
                lock(&self.by_hand).insert(addr, fault);
            }
        }
    }

    /// Takes a connection into the roster and watches it.
    fn hold(&self, node: &Arc<Node>, connection: ControlConnection, heard: &mpsc::Sender<Heard>) {
        let (id, addr, build) = (connection.peer, connection.remote, connection.build.clone());
        let (events_in, mut events) = mpsc::channel(1);
        let peer = Peer::start(connection, events_in);
        if !self.roster().connected(id, addr, &build, peer.clone(), self.now()) {
            return;
        }
        tracing::info!(peer = %id.short(), %addr, "connected to a peer");
        let (heard, node) = (heard.clone(), Arc::clone(node));
        tokio::spawn(async move {
            let lost = async {
                loop {
                    match events.recv().await {
                        Some(PeerEvent::Event(_)) => {}
                        Some(PeerEvent::Lost(reason)) => return reason,
                        None => return "closed".to_owned(),
                    }
                }
            };
            let attended = async {
                if let Ok(Response::Facts(facts)) = peer.call(Request::Facts, FACTS_MAX).await {
                    let _ = heard.send(Heard::Named(id, facts.name)).await;
                }
                survey::attend(&node, &peer).await;
                // Why the connection is gone is told by its events.
                std::future::pending::<()>().await;
            };
            tokio::select! {
                reason = lost => {
                    node.survey.mark_lost(&id, reason.clone());
                    let _ = heard.send(Heard::Lost(id, reason)).await;
                }
                () = attended => {}
                () = node.stopping() => {}
            }
        });
    }

    fn roster(&self) -> MutexGuard<'_, Roster<Peer>> {
        lock(&self.roster)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// An address that the user gave.
#[derive(Debug, Default)]
struct ByHand {
    id: Option<NodeId>,
    retry_at: Duration,
    is_dialled: bool,
}

/// Every change of the state is one call, so a poisoned lock holds nothing half-done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sightings(seen: &Seen) -> Vec<Sighted> {
    let sighted = seen.nodes.values().map(|sighting| Sighted {
        id: sighting.advert.id,
        name: sighting.advert.name.clone(),
        build: sighting.advert.build.clone(),
        addrs: sighting.addrs.clone(),
        first_seen: sighting.first_seen,
    });
    sighted.collect()
}

fn fault_of(error: &DialError) -> Fault {
    let state = match error {
        DialError::NotTrustedByPeer { .. } => PeerState::OneSided,
        DialError::Version { .. } => PeerState::OtherVersion,
        _ => PeerState::Gone,
    };
    let remedy = match error {
        DialError::NotTrustedByPeer { .. } => Some("daisy cluster pair".to_owned()),
        _ => None,
    };
    Fault { state, remedy, reason: error.to_string() }
}

fn fault(reason: String) -> Fault {
    Fault { state: PeerState::Gone, reason, remedy: None }
}

fn copied(addrs: &[SocketAddr]) -> Refusal {
    let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
    Refusal {
        message: format!(
            "another machine shows this node's own id ({}): Daisy's home was copied to it, key \
             included, and peers cannot tell the two apart",
            addrs.join(", ")
        ),
        hints: vec![
            "stop the node on one of the two, run `daisy cluster reset-identity` there, and pair it \
             anew"
                .to_owned(),
        ],
        kind: RefusalKind::CannotBeDone,
    }
}

/// How soon a change of the trusted nodes is seen.
const TICK: Duration = Duration::from_millis(250);
const DIAL_MAX: Duration = Duration::from_secs(3);
/// macOS takes seconds to look for its cables the first time.
const FACTS_MAX: Duration = Duration::from_secs(20);
const BY_HAND_INTERVAL: Duration = Duration::from_secs(3);
/// A node that has just started finds its neighbours within this time, or they are not there.
const SETTLED_AFTER: Duration = Duration::from_millis(2500);
/// A node that was seen is dialled and answers within this time, or it does not.
const DIALLED_AFTER: Duration = Duration::from_secs(1);
/// Two words per connection.
const HEARD_MAX: usize = 64;
