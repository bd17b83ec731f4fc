//! Measures the link between this node and another one, from both ends, and makes them agree on the
//! record of it.
//!
//! One end leads, of two nodes always the same: it dials every pair of addresses, asks the other to do
//! the same, merges both, and tells the other the result. Two that measured one link at once would each
//! see half of it, and keep different records. Knows no plans. Start at [`link_to`].

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use daisy_proto::control::{NodeFacts, Request, Response, Way};
use daisy_proto::{Interface, NodeId, NodeLink, PathEnd, Sample, Trial};
use futures::future::join_all;
use tokio::sync::{MutexGuard, mpsc};
use tokio::time::timeout;

use super::Node;
use super::peers::{Peer, PeerEvent};
use crate::links;
use crate::net::probe::{self, Depth};

/// What this node tells others of its machine.
pub(crate) async fn own_facts(node: &Node) -> NodeFacts {
    let machine = Arc::clone(&node.machine);
    let read = move || (machine.facts(), machine.interfaces(), machine.cables());
    // Reading never panics; if it did, a node without facts would still work.
    let (facts, interfaces, cables) = tokio::task::spawn_blocking(read).await.unwrap_or_default();
    NodeFacts {
        name: node.name.clone(),
        facts,
        interfaces,
        cables,
        control_port: node.control.local_addr().port(),
        probe_port: node.probes.port(),
    }
}

/// What is good enough of what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Any record that is not too old.
    Known,
    /// One of a link that will do; a bad one is measured anew, for what was wrong may have been put right.
    Good,
}

/// The link to a connected peer: as it is known, or measured now by the end that leads.
pub(crate) async fn link_to(
    node: &Node,
    peer: &Peer,
    theirs: &NodeFacts,
    wanted: Wanted,
) -> Result<NodeLink, String> {
    let asked = Instant::now();
    let (me, ours) = (node.identity.node_id(), own_facts(node).await);
    let ends = [ours.interfaces.clone(), theirs.interfaces.clone()];
    if links::leads(me, peer.id) {
        // Whoever measures now may well be at this very link.
        let turn = node.measuring.lock().await;
        return match node.survey.fresh_link(&peer.id, &ends, wanted, asked) {
            Some(link) => Ok(link),
            None => measure_now(node, peer, theirs, &turn).await,
        };
    }
    if let Some(link) = node.survey.fresh_link(&peer.id, &ends, wanted, asked) {
        return Ok(link);
    }
    let link = ask_for_link(peer, me, ours, wanted).await?;
    if link.nodes != [peer.id, me] {
        return Err("it told of another link".to_owned());
    }
    node.survey.keep_link(peer.id, link.clone(), ends);
    Ok(link)
}

/// What a peer says of its link to a node, which it measures if it does not know it.
pub(crate) async fn ask_for_link(
    peer: &Peer,
    node: NodeId,
    about: NodeFacts,
    wanted: Wanted,
) -> Result<NodeLink, String> {
    let insists = wanted == Wanted::Good;
    let request = Request::LinkTo { node, about: Box::new(about), insists };
    match peer.call(request, LINK_MAX).await {
        Ok(Response::Link(link)) => Ok(link),
        Ok(Response::Refused(refusal)) => Err(refusal.message),
        Ok(other) => Err(format!("it answered out of turn: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// The link to a node that another one, or that node itself, asks about: connects to it first, unless
/// it is a neighbour.
pub(crate) async fn link_to_stranger(
    node: &Node,
    id: NodeId,
    about: &NodeFacts,
    wanted: Wanted,
) -> Result<NodeLink, String> {
    let neighbours = node.neighbours.ready();
    if let Some(neighbour) = neighbours.iter().find(|neighbour| neighbour.id == id) {
        return link_to(node, &neighbour.handle, about, wanted).await;
    }
    let (events, _unheard) = mpsc::channel(1);
    let peer = connect_to(node, id, about, events).await?;
    link_to(node, &peer, about, wanted).await
}

/// Connects to a node by whichever of its addresses answers.
pub(crate) async fn connect_to(
    node: &Node,
    id: NodeId,
    about: &NodeFacts,
    events: mpsc::Sender<PeerEvent>,
) -> Result<Peer, String> {
    let ours = own_facts(node).await;
    let pairs = [false, true]
        .map(|is_here| links::candidates(&ours.interfaces, &about.interfaces, is_here));
    let mut addrs: Vec<SocketAddr> = Vec::new();
    for (own, other) in pairs.iter().flatten() {
        let addr = Way::between(own, other, about.control_port).addr;
        if !addrs.contains(&addr) {
            addrs.push(addr);
        }
    }
    match node.control.dial_node(id, &addrs, DIAL_MAX).await {
        Some(Ok(connection)) => Ok(Peer::start(connection, events)),
        Some(Err(error)) => Err(error.to_string()),
        None => Err(format!("no address of `{}` is on a network of this node", about.name)),
    }
}

/// Tries every pair of addresses from both ends and makes the record. The turn is this node's: two
/// bursts at once would each see half of the link.
async fn measure_now(
    node: &Node,
    peer: &Peer,
    theirs: &NodeFacts,
    _turn: &MutexGuard<'_, ()>,
) -> Result<NodeLink, String> {
    let (me, ours) = (node.identity.node_id(), own_facts(node).await);
    let remote = peer.remote.ip();
    let here = trials(node, peer.id, remote, &theirs.interfaces, theirs.probe_port).await;
    let request =
        Request::Probe { interfaces: ours.interfaces.clone(), probe_port: ours.probe_port };
    let there = match peer.call(request, PROBE_MAX).await {
        Ok(Response::Probed(trials)) => trials,
        Ok(Response::Refused(refusal)) => return Err(refusal.message),
        Ok(other) => return Err(format!("it answered out of turn: {other:?}")),
        Err(error) => return Err(error.to_string()),
    };
    let known = node.survey.of(&peer.id).and_then(|known| known.link);
    let round = known.map_or(1, |known| known.round + 1);
    let link = links::merge(me, peer.id, round, here, there);
    agree(node, peer, theirs, link.clone()).await?;
    Ok(link)
}

/// Looks again at the best path, from this end, which leads; measures everything where that path is no
/// longer as it was.
pub(crate) async fn refresh(
    node: &Node,
    peer: &Peer,
    theirs: &NodeFacts,
    link: &NodeLink,
) -> Result<(), String> {
    let turn = node.measuring.lock().await;
    if let Some(link) = look_again(node, peer, theirs, link).await {
        return agree(node, peer, theirs, link).await;
    }
    tracing::info!(peer = %peer.id.short(), "the link has changed");
    measure_now(node, peer, theirs, &turn).await.map(drop)
}

async fn look_again(
    node: &Node,
    peer: &Peer,
    theirs: &NodeFacts,
    link: &NodeLink,
) -> Option<NodeLink> {
    let me = node.identity.node_id();
    let (own, other) = links::ends(link, link.paths.first()?, me);
    let way = Way::between(own, other, theirs.probe_port);
    let latency = probe::probe(&node.key, peer.id, &way, Depth::Latency).await.ok()?;
    links::refreshed(link, me, latency)
}

async fn agree(node: &Node, peer: &Peer, theirs: &NodeFacts, link: NodeLink) -> Result<(), String> {
    match peer.call(Request::Agree(link.clone()), CALL_MAX).await {
        Ok(Response::Done) => {}
        Ok(Response::Refused(refusal)) => return Err(refusal.message),
        Ok(other) => return Err(format!("it answered out of turn: {other:?}")),
        Err(error) => return Err(error.to_string()),
    }
    let ends = [own_facts(node).await.interfaces, theirs.interfaces.clone()];
    node.survey.keep_link(peer.id, link, ends);
    Ok(())
}

/// Dials every pair of addresses that may lead to a node; `remote` is where its control connection
/// comes from.
pub(crate) async fn trials(
    node: &Node,
    id: NodeId,
    remote: IpAddr,
    theirs: &[Interface],
    probe_port: u16,
) -> Vec<Trial> {
    let own = own_facts(node).await.interfaces;
    let is_here = remote.is_loopback()
        || own.iter().flat_map(|interface| &interface.addrs).any(|addr| addr.ip == remote);
    let pairs = links::candidates(&own, theirs, is_here);
    // Most of them lead nowhere, which takes seconds to see: side by side, with little traffic.
    let reached =
        join_all(pairs.iter().map(|pair| try_one(node, id, pair, probe_port, Depth::Reach)));
    let reached = reached.await;
    // Those that lead somewhere one after another, so that they do not disturb each other.
    let mut trials = Vec::new();
    let until = tokio::time::Instant::now() + TRIALS_MAX;
    for (pair, outcome) in pairs.into_iter().zip(reached) {
        let outcome = match outcome {
            Ok(_) => {
                let measured = try_one(node, id, &pair, probe_port, Depth::Bandwidth);
                let late = || Err("there was no time to measure it".to_owned());
                tokio::time::timeout_at(until, measured).await.unwrap_or_else(|_| late())
            }
            Err(error) => Err(error),
        };
        let (own, other) = pair;
        trials.push(Trial { own, other, outcome });
    }
    trials
}

async fn try_one(
    node: &Node,
    id: NodeId,
    (own, other): &(PathEnd, PathEnd),
    probe_port: u16,
    depth: Depth,
) -> Result<Sample, String> {
    let way = Way::between(own, other, probe_port);
    let outcome = timeout(TRIALS_MAX, probe::probe(&node.key, id, &way, depth)).await;
    let outcome = outcome.unwrap_or_else(|_| Err("no answer".to_owned()));
    outcome.map_err(|error| error.chars().take(ERROR_CHARS_MAX).collect())
}

/// All paths of one end.
const TRIALS_MAX: Duration = Duration::from_secs(15);
/// The other end's paths, and a measurement there that has to end first. A peer that is lost ends the
/// call at once.
const PROBE_MAX: Duration = Duration::from_mins(1);
/// A measurement, and one that has to end first.
const LINK_MAX: Duration = Duration::from_mins(2);
const CALL_MAX: Duration = Duration::from_secs(5);
const DIAL_MAX: Duration = Duration::from_secs(3);
/// 32 trials with this and two ends each fit a control message.
const ERROR_CHARS_MAX: usize = 200;
