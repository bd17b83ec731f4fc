//! Another node's log, for the command line: finds the node by address or name and asks it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use daisy_proto::control::{Request, Response};
use daisy_proto::local::{Refusal, RefusalKind};
use tokio::sync::mpsc;

use super::peers::Peer;
use super::{CONTROL_PORT, Node};

/// The last lines of the log of `wanted`: an address, or the name of a peer that this node knows.
pub(crate) async fn fetch(node: &Node, wanted: &str, lines: u32) -> Result<String, Refusal> {
    let candidates = match address(wanted) {
        Some(addr) => vec![addr],
        None => node.peers.clone(),
    };
    let by_address = address(wanted).is_some();
    let mut faults = Vec::new();
    for addr in candidates {
        match ask(node, addr, (!by_address).then_some(wanted), lines).await {
            Ok(Some(text)) => return Ok(text),
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
    }
    let message = if by_address {
        faults.join("\n")
    } else {
        let mut message = format!("no peer that this node knows is named `{wanted}`");
        for fault in faults {
            message.push('\n');
            message.push_str(&fault);
        }
        message
    };
    let hints = if by_address {
        Vec::new()
    } else {
        vec!["name it by address, or give `daisy cluster up` its address with --peer".to_owned()]
    };
    Err(Refusal { message, hints, kind: RefusalKind::NotReachable })
}

/// None: the node at `addr` has another name.
async fn ask(
    node: &Node,
    addr: SocketAddr,
    name: Option<&str>,
    lines: u32,
) -> Result<Option<String>, String> {
    let connection = node.control.dial(addr, DIAL_MAX).await.map_err(|error| error.to_string())?;
    let (events, _unheard) = mpsc::channel(1);
    let peer = Peer::start(connection, events);
    let call = |request| peer.call(request, CALL_MAX);
    if let Some(name) = name {
        match call(Request::Facts).await {
            Ok(Response::Facts(facts)) if facts.name == name => {}
            Ok(_) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
    }
    match call(Request::Logs { lines }).await {
        Ok(Response::Logs(text)) => Ok(Some(text)),
        Ok(Response::Refused(refusal)) => Err(format!("{addr}: {}", refusal.message)),
        Ok(other) => Err(format!("{addr} answered out of turn: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn address(text: &str) -> Option<SocketAddr> {
    let bare = |text: &str| text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, CONTROL_PORT));
    text.parse().ok().or_else(|| bare(text))
}

const DIAL_MAX: Duration = Duration::from_secs(5);
const CALL_MAX: Duration = Duration::from_secs(10);
