//! The driver and what joins its ranks: an edge changes over when its link goes bad and there is a good
//! one, and a peer whose connection broke off is looked for by its other links.

use std::sync::Arc;

use daisy_proto::control::{NodeFacts, Request, Response, Way};
use daisy_proto::local::{FromNode, ToRank};
use daisy_proto::{NodeId, NodeLink, PipelineId, Rank};
use tokio::sync::mpsc;

use super::{CALL_MAX, Driver, EVENTS_MAX, Event, failed};
use crate::links;
use crate::node::Node;
use crate::node::measuring::connect_to;
use crate::node::peers::{Peer, PeerEvent};
use crate::node::relay::{join, relay};
use crate::node::watching;
use crate::pipeline::{Input, State};

/// A new connection to a peer, and what it tells.
pub(super) type Found = (Peer, mpsc::Receiver<PeerEvent>);

impl Driver {
    /// Looks at the links of the ring now and then, from the nodes as they are connected now.
    pub(super) fn watch_links(&mut self) {
        let report = relay(EVENTS_MAX, self.events_in.clone(), |(edge, link)| {
            Event::Link(edge, Box::new(link))
        });
        self.watches = watching::edges(&self.node, &self.peers, &report);
    }

    /// What the link of an edge is now.
    pub(super) async fn link_seen(&mut self, edge: usize, link: &NodeLink) {
        let world = self.planned.len();
        let next = (edge + 1) % world;
        let best = links::best_now(link, &self.wish.links);
        let before = self.best_told[edge].replace(best.clone());
        // In a ring of two there and back is one link.
        let is_told = world == 2 && edge == 1;
        if before.is_some_and(|before| before != best) && !is_told {
            let between = self.between(edge, "and");
            self.note(format!("the link between {between} has changed: {best}")).await;
        }
        let (Some(in_use), Some(staged)) = (self.hops[edge].first().cloned(), self.staged[next])
        else {
            return;
        };
        let me = self.planned[edge].node;
        let better = links::better(link, &self.wish.links, me, &in_use);
        if better.is_empty() || !matches!(self.pipeline.state(), State::Ready) {
            return;
        }
        let ways: Vec<Way> =
            better.iter().map(|(own, other)| Way::between(own, other, staged.port)).collect();
        // The one in use comes first until the rank says that it has left it.
        self.hops[edge] = std::iter::once(in_use).chain(better).collect();
        if let Some(peer) = self.peers[edge].clone() {
            let request = Request::Reroute { pipeline: self.id, ways };
            // What becomes of it is told by an event.
            self.aside(async move { drop(peer.call(request, CALL_MAX).await) });
        } else if let Some(local) = &self.local {
            local.send(ToRank::Reroute { ways }).await;
        }
    }

    /// The rank sends hidden states by another way now.
    pub(super) async fn moved(&mut self, rank: Rank, way: &Way, cause: &str) {
        let edge = rank.0 as usize;
        let Some(hops) = self.hops.get_mut(edge) else { return };
        let is_it = |(own, other): &(_, _)| Way::between(own, other, way.addr.port()) == *way;
        match hops.iter().position(is_it) {
            // Told again by a peer that was out of reach.
            Some(0) => return,
            Some(at) => {
                let in_use = hops.remove(at);
                hops.insert(0, in_use);
            }
            None => {}
        }
        let over = match &way.device {
            Some(device) => device.name.clone(),
            None => way.addr.ip().to_string(),
        };
        let between = self.between(edge, "to");
        self.note(format!("hidden states from {between} go over {over} now: {cause}")).await;
    }

    /// The connection to a peer is gone, but its rank may live. Says whether it is looked for.
    pub(super) fn look_for(&mut self, rank: Rank, reason: &str) -> bool {
        if !matches!(self.pipeline.state(), State::Ready | State::Draining) {
            return false;
        }
        let Some(about) = self.about.get(rank.0 as usize).cloned() else { return false };
        let id = self.planned[rank.0 as usize].node;
        let (node, events) = (Arc::clone(&self.node), self.events_in.clone());
        let (pipeline, reason) = (self.id, reason.to_owned());
        self.aside(async move {
            let found = come_back(&node, id, &about, pipeline).await;
            let _ = events.send(Event::PeerFound(rank, reason, found)).await;
        });
        true
    }

    /// What came of looking for a peer: its rank's failure, if that is the end of it.
    pub(super) async fn found(
        &mut self,
        rank: Rank,
        reason: String,
        found: Result<Found, String>,
    ) -> Option<Input> {
        let (peer, told) = match found {
            Ok(found) => found,
            Err(why) => {
                tracing::info!(%rank, why, "the peer is not found by another link");
                return Some(out_of_reach(rank, &reason));
            }
        };
        if matches!(self.pipeline.state(), State::Failed(_)) {
            let request = Request::Stop { pipeline: self.id };
            self.aside(async move { drop(peer.call(request, CALL_MAX).await) });
            return None;
        }
        let name = &self.about[rank.0 as usize].name;
        let text = format!("the connection to `{name}` is back, by {}: {reason}", peer.remote);
        join(told, self.events_in.clone(), move |event| Event::Peer(rank, event));
        self.peers[rank.0 as usize] = Some(peer);
        self.watch_links();
        self.note(text).await;
        None
    }

    /// Until it ends or the pipeline does.
    fn aside(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }

    async fn note(&self, text: String) {
        let _ = self.out.send(FromNode::Note(text)).await;
    }

    fn between(&self, edge: usize, word: &str) -> String {
        let next = (edge + 1) % self.planned.len();
        format!("`{}` {word} `{}`", self.about[edge].name, self.about[next].name)
    }
}

/// Connects to a node by any of its addresses, and holds its rank by that connection.
async fn come_back(
    node: &Node,
    id: NodeId,
    about: &NodeFacts,
    pipeline: PipelineId,
) -> Result<Found, String> {
    let (events_in, events) = mpsc::channel(EVENTS_MAX);
    let peer = connect_to(node, id, about, events_in).await?;
    match peer.call(Request::Resume { pipeline }, CALL_MAX).await {
        Ok(Response::Done) => Ok((peer, events)),
        Ok(Response::Refused(refusal)) => Err(refusal.message),
        Ok(other) => Err(format!("it answered out of turn: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn out_of_reach(rank: Rank, reason: &str) -> Input {
    failed(rank, format!("is out of reach, its node's connection ended: {reason}"))
}
