//! Watches the links of a pipeline and tells the command line when one changes. What serves goes on: a
//! rank keeps the edge that it has.

use std::sync::Arc;
use std::time::Duration;

use daisy_proto::local::{FromNode, LinkWish};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Node;
use super::members::Member;
use super::peers::Peer;
use super::survey;
use crate::links;

/// Keeps facts of the members and this node's links to them fresh, until it is dropped.
pub(crate) fn links(
    node: &Arc<Node>,
    members: &[Member],
    wish: &LinkWish,
    out: &mpsc::Sender<FromNode>,
) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    for member in members {
        let Some((peer, _)) = &member.peer else { continue };
        let (node, peer, out, wish) = (Arc::clone(node), peer.clone(), out.clone(), wish.clone());
        let name = member.facts.name.clone();
        // A neighbour is attended to already.
        let is_attended = node.neighbours.ready().iter().any(|ready| ready.id == peer.id);
        watches.spawn(async move {
            let told = tell_changes(&node, &peer, name.as_str(), &wish, &out);
            if is_attended {
                told.await;
            } else {
                tokio::join!(survey::attend(&node, &peer), told);
            }
        });
    }
    watches
}

async fn tell_changes(
    node: &Node,
    peer: &Peer,
    name: &str,
    wish: &LinkWish,
    out: &mpsc::Sender<FromNode>,
) {
    let mut last: Option<String> = None;
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(link) = node.survey.of(&peer.id).and_then(|known| known.link) else { continue };
        let best = links::best_now(&link, wish);
        if last.as_ref().is_some_and(|before| *before != best) {
            let text = format!("the link to `{name}` has changed: {best}");
            let _ = out.send(FromNode::Note(text)).await;
        }
        last = Some(best);
    }
}

const INTERVAL: Duration = Duration::from_secs(5);
