//! Another node's log, for the command line: finds the node by address or name and asks it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use daisy_proto::control::{Request, Response};
use daisy_proto::local::{Refusal, RefusalKind};
use tokio::sync::mpsc;

use super::named::named;
use super::peers::Peer;
use super::{CONTROL_PORT, Node};

/// The last lines of the log of `wanted`: an address, or the name or id of a peer that this node knows.
pub(crate) async fn fetch(node: &Node, wanted: &str, lines: u32) -> Result<String, Refusal> {
    if let Some(addr) = address(wanted) {
        let dialled = node.control.dial(addr, DIAL_MAX).await;
        let connection = dialled.map_err(|error| not_reachable(error.to_string(), Vec::new()))?;
        let (events, _unheard) = mpsc::channel(1);
        let asked = ask(&Peer::start(connection, events), lines).await;
        return asked.map_err(|fault| not_reachable(fault, Vec::new()));
    }
    if let Some(ready) = named(node, wanted).await {
        let asked = ask(&ready.handle, lines).await;
        return asked.map_err(|fault| not_reachable(fault, Vec::new()));
    }
    let hints = vec![
        "`daisy cluster peers` shows whom it knows; name another one by address, or give \
         `daisy cluster up` its address with --peer"
            .to_owned(),
    ];
    Err(not_reachable(format!("no peer that answers now is named `{wanted}`"), hints))
}

async fn ask(peer: &Peer, lines: u32) -> Result<String, String> {
    match peer.call(Request::Logs { lines }, CALL_MAX).await {
        Ok(Response::Logs(text)) => Ok(text),
        Ok(Response::Refused(refusal)) => Err(format!("{}: {}", peer.remote, refusal.message)),
        Ok(other) => Err(format!("{} answered out of turn: {other:?}", peer.remote)),
        Err(error) => Err(error.to_string()),
    }
}

fn not_reachable(message: String, hints: Vec<String>) -> Refusal {
    Refusal { message, hints, kind: RefusalKind::NotReachable }
}

fn address(text: &str) -> Option<SocketAddr> {
    let bare = |text: &str| text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, CONTROL_PORT));
    text.parse().ok().or_else(|| bare(text))
}

const DIAL_MAX: Duration = Duration::from_secs(5);
const CALL_MAX: Duration = Duration::from_secs(10);
