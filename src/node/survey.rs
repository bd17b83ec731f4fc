//! What this node knows of other nodes' machines and of the links to them.
//!
//! [`attend`] keeps it fresh over an open control connection: facts every few seconds, the link measured
//! when it is new or an interface changes, its best path looked at again each minute. Whoever needs a
//! fact reads it here. It does not know how nodes are found. Start at [`Survey`].

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use daisy_proto::control::{NodeFacts, Request, Response};
use daisy_proto::local::{Finding, PeerSurvey};
use daisy_proto::{Interface, NodeId, NodeLink};

use super::Node;
use super::measuring::{self, Wanted, own_facts};
use super::peers::{CallError, Peer};
use crate::links;

#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// A node stays here when it is lost.
    nodes: Mutex<BTreeMap<NodeId, Known>>,
    /// What the last self-test found.
    findings: Mutex<Vec<Finding>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) facts: Option<NodeFacts>,
    pub(crate) link: Option<NodeLink>,
    /// When the record was made, and of which interfaces of both ends.
    measured: Option<(Instant, [Vec<Interface>; 2])>,
    lost: Option<String>,
}

impl Survey {
    pub(crate) fn of(&self, id: &NodeId) -> Option<Known> {
        self.all().get(id).cloned()
    }

    /// The record of the link to `id`, unless it is too old or an interface has changed since. A bad one that
    /// was made after `asked` will do for whoever wants a good one: there is none.
    pub(crate) fn fresh_link(
        &self,
        id: &NodeId,
        ends: &[Vec<Interface>; 2],
        wanted: Wanted,
        asked: Instant,
    ) -> Option<NodeLink> {
        let known = self.of(id)?;
        let (link, (at, before)) = (known.link?, known.measured?);
        let will_do = wanted == Wanted::Known || links::is_good(&link) || at >= asked;
        (will_do && at.elapsed() < LINK_AGE_MAX && before == *ends).then_some(link)
    }

    pub(crate) fn keep_facts(&self, id: NodeId, facts: NodeFacts) {
        let mut all = self.all();
        let known = all.entry(id).or_default();
        known.facts = Some(facts);
        known.lost = None;
    }

    /// What the end that leads has made of the link; it says one thing after the other.
    pub(crate) fn keep_link(&self, id: NodeId, link: NodeLink, ends: [Vec<Interface>; 2]) {
        let mut all = self.all();
        let known = all.entry(id).or_default();
        known.link = Some(link);
        known.measured = Some((Instant::now(), ends));
    }

    pub(crate) fn mark_lost(&self, id: &NodeId, reason: String) {
        if let Some(known) = self.all().get_mut(id) {
            known.lost = Some(reason);
        }
    }

    pub(crate) fn peers(&self) -> Vec<PeerSurvey> {
        let all = self.all();
        let row = |(id, known): (&NodeId, &Known)| PeerSurvey {
            id: *id,
            facts: known.facts.clone(),
            link: known.link.clone(),
            lost: known.lost.clone(),
        };
        all.iter().map(row).collect()
    }

    pub(crate) fn set_findings(&self, findings: Vec<Finding>) {
        *lock(&self.findings) = findings;
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        lock(&self.findings).clone()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<NodeId, Known>> {
        lock(&self.nodes)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Entries are replaced whole, so a poisoned lock holds nothing half-done.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what is known of a connected peer fresh, until its connection ends.
pub(crate) async fn attend(node: &Node, peer: &Peer) {
    let mut turns = tokio::time::interval(FACTS_INTERVAL);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Of two nodes that attend each other one measures; the other one looks later whether it did.
    let leads = links::leads(node.identity.node_id(), peer.id);
    let looks_after = if leads { Duration::ZERO } else { FACTS_INTERVAL };
    let began = Instant::now();
    loop {
        turns.tick().await;
        match peer.call(Request::Facts, CALL_MAX).await {
            Ok(Response::Facts(facts)) => node.survey.keep_facts(peer.id, *facts),
            Ok(_) => {}
            Err(CallError::Gone(_)) => return,
            Err(CallError::Late { .. }) => continue,
        }
        if began.elapsed() < looks_after {
            continue;
        }
        if let Err(error) = look_at_link(node, peer).await {
            tracing::info!(peer = %peer.id.short(), error, "the link cannot be measured");
        }
    }
}

/// Has measured what is due.
async fn look_at_link(node: &Node, peer: &Peer) -> Result<(), String> {
    let Some(Known { facts: Some(theirs), link, measured, .. }) = node.survey.of(&peer.id) else {
        return Ok(());
    };
    let ours = own_facts(node).await;
    let ends = [ours.interfaces, theirs.interfaces.clone()];
    match (link, measured) {
        (Some(link), Some((at, before)))
            if before == ends && links::leads(node.identity.node_id(), peer.id) =>
        {
            if at.elapsed() > REFRESH_AFTER {
                measuring::refresh(node, peer, &theirs, &link).await?;
            }
        }
        _ => {
            measuring::link_to(node, peer, &theirs, Wanted::Known).await?;
        }
    }
    Ok(())
}

const FACTS_INTERVAL: Duration = Duration::from_secs(5);
const REFRESH_AFTER: Duration = Duration::from_mins(1);
/// A record that nobody has renewed for this long says little.
const LINK_AGE_MAX: Duration = Duration::from_mins(3);
const CALL_MAX: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    fn link(round: u64) -> NodeLink {
        NodeLink { nodes: [NodeId([1; 32]), NodeId([2; 32])], round, paths: Vec::new() }
    }

    #[test]
    fn the_last_record_holds_until_an_interface_changes() {
        let (survey, id) = (Survey::default(), NodeId([2; 32]));
        let ends = || [Vec::new(), Vec::new()];
        let asked = Instant::now();
        let known = |ends| survey.fresh_link(&id, &ends, Wanted::Known, asked);
        assert_eq!(known(ends()), None);
        survey.keep_link(id, link(3), ends());
        assert_eq!(known(ends()), Some(link(3)));
        // The other end has started anew and counts from 1 again.
        survey.keep_link(id, link(1), ends());
        assert_eq!(known(ends()), Some(link(1)));
        let interface = Interface {
            device: daisy_proto::Device { name: "en5".to_owned(), index: 5 },
            kind: daisy_proto::LinkKind::WiFi,
            mtu: 1500,
            addrs: Vec::new(),
        };
        assert_eq!(known([vec![interface], Vec::new()]), None);
        // It has no path that works: who wants one has it measured, but once.
        let good = |asked| survey.fresh_link(&id, &ends(), Wanted::Good, asked);
        assert_eq!(good(Instant::now()), None);
        assert_eq!(good(asked), Some(link(1)));
        survey.mark_lost(&id, "closed".to_owned());
        assert_eq!(survey.peers()[0].lost.as_deref(), Some("closed"));
    }
}
