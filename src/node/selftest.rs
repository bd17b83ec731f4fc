//! The node looks at itself: at its start and each minute. What is newly wrong goes into its log, and
//! `daisy doctor` shows what is wrong now.

use std::time::Duration;

use daisy_proto::local::Finding;

use super::Node;
use super::measuring::own_facts;
use crate::{doctor, machine};

/// Goes on until it is dropped.
pub(crate) async fn run(node: &Node) {
    let mut turns = tokio::time::interval(INTERVAL);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let before = node.survey.findings();
        let found = look(node).await;
        for Finding { what, remedy } in found.iter().filter(|found| !before.contains(found)) {
            tracing::warn!(remedy, "{what}");
        }
        node.survey.set_findings(found);
    }
}

/// What is wrong now.
pub(crate) async fn look(node: &Node) -> Vec<Finding> {
    let (home, peers) = (node.home.clone(), node.peers.clone());
    let system = tokio::task::spawn_blocking(move || machine::system(&home, &peers)).await;
    // Looking never panics; if it did, the links could still be judged.
    let system = system.unwrap_or_default();
    let own = own_facts(node).await;
    let (peers, unreached) = (node.survey.peers(), node.neighbours.unreached());
    doctor::findings(node.identity.node_id(), &own, &peers, &unreached, &system)
}

const INTERVAL: Duration = Duration::from_mins(1);
