//! A command line that wants another node to drive: its own node carries the conversation there, over
//! a control connection of its own. When one end goes, so does the other.
//!
//! [`forward`] is the near side, [`Attended`] the far one, where [`super::attach`] hears no difference.

use std::sync::Arc;
use std::time::Duration;

use daisy_proto::control::{Event, Request, Response};
use daisy_proto::local::{FromNode, Refusal, RefusalKind, Serve, ToNode};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::Node;
use super::attach::{self, Attached};
use super::named::named;
use super::peers::{Peer, PeerEvent};
use crate::ipc::{Reader, Writer};

/// Has the node named in the wish do what the command line asks; `make` wraps the wish again.
pub(crate) async fn forward(
    node: &Node,
    wish: Serve,
    make: fn(Box<Serve>) -> ToNode,
    mut reader: Reader,
    mut writer: Writer,
) {
    let (peer, mut events) = match connect(node, wish.driver.as_deref().unwrap_or_default()).await {
        Ok(connected) => connected,
        Err(refusal) => return drop(writer.write(&FromNode::Refused(refusal)).await),
    };
    let host = wish.host.or_else(|| attach::reachable_host(peer.remote.ip()));
    let first = make(Box::new(Serve { driver: None, host, ..wish }));
    let mut asked = Some(first);
    loop {
        if let Some(said) = asked.take() {
            match peer.call(Request::Attend(Box::new(said)), CALL_MAX).await {
                Ok(Response::Refused(refusal)) => {
                    return drop(writer.write(&FromNode::Refused(refusal)).await);
                }
                Ok(_) => {}
                // The connection's own end says more.
                Err(error) => tracing::warn!(%error, "the driver does not answer"),
            }
        }
        tokio::select! {
            event = events.recv() => match event {
                Some(PeerEvent::Event(Event::Said(Some(said)))) => {
                    if writer.write(&*said).await.is_err() {
                        return;
                    }
                }
                Some(PeerEvent::Event(Event::Said(None))) | None => return,
                Some(PeerEvent::Event(_)) => {}
                Some(PeerEvent::Lost(why)) => {
                    let message = format!("the connection to the driver ended: {why}");
                    let lost = refusal(message, RefusalKind::NotReachable);
                    return drop(writer.write(&FromNode::Refused(lost)).await);
                }
            },
            said = reader.read::<ToNode>() => match said {
                Ok(Some(said)) => asked = Some(said),
                // Dropping the connection tells the driver that its command line is gone.
                Ok(None) | Err(_) => return,
            },
            () = node.stopping() => return,
        }
    }
}

/// A connection to the peer of this name that nothing else uses.
async fn connect(node: &Node, name: &str) -> Result<(Peer, mpsc::Receiver<PeerEvent>), Refusal> {
    let Some(found) = named(node, name).await else {
        let message = format!("--driver {name}: no paired node of that name answers");
        let hint = "`daisy cluster peers` shows whom this node knows".to_owned();
        return Err(Refusal { hints: vec![hint], ..refusal(message, RefusalKind::NotReachable) });
    };
    let dialled = match node.control.dial_node(found.id, &[found.addr], DIAL_MAX).await {
        Some(dialled) => dialled,
        None => node.control.dial(found.addr, DIAL_MAX).await,
    };
    let connection =
        dialled.map_err(|error| refusal(error.to_string(), RefusalKind::NotReachable))?;
    let (events_in, events) = mpsc::channel(EVENTS_MAX);
    Ok((Peer::start(connection, events_in), events))
}

/// A peer's command line here. Dropping it is the command line's end.
#[derive(Debug)]
pub(crate) struct Attended {
    writer: Writer,
}

impl Attended {
    /// Begins a conversation that says what it hears to `said`, and none at its end.
    pub(crate) fn open(
        node: &Arc<Node>,
        attached: &Attached,
        said: mpsc::Sender<Option<Box<FromNode>>>,
    ) -> std::io::Result<Self> {
        let (theirs, ours) = UnixStream::pair()?;
        tokio::spawn(attach::converse(Arc::clone(node), ours, attached.clone()));
        let (read, write) = theirs.into_split();
        tokio::spawn(async move {
            let mut reader = Reader::new(read);
            while let Ok(Some(heard)) = reader.read::<FromNode>().await {
                if said.send(Some(Box::new(heard))).await.is_err() {
                    return;
                }
            }
            let _ = said.send(None).await;
        });
        Ok(Self { writer: Writer::new(write) })
    }

    /// What a peer's command line may ask here: a model, and no more of one. It may not end this node
    /// or pair it.
    pub(crate) async fn say(&mut self, said: &ToNode) -> Response {
        match said {
            ToNode::Serve(_) | ToNode::Plan(_) | ToNode::Drain { .. } | ToNode::Detach => {}
            _ => {
                let message = "only a model can be asked for over the network".to_owned();
                return Response::Refused(refusal(message, RefusalKind::CannotBeDone));
            }
        }
        match self.writer.write(said).await {
            Ok(()) => Response::Done,
            Err(error) => Response::Refused(refusal(error.to_string(), RefusalKind::CannotBeDone)),
        }
    }
}

fn refusal(message: String, kind: RefusalKind) -> Refusal {
    Refusal { message, hints: Vec::new(), kind }
}

const DIAL_MAX: Duration = Duration::from_secs(5);
/// To pass a message on takes no time.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Progress of all ranks that load.
const EVENTS_MAX: usize = 256;
