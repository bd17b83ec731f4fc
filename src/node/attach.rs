//! The command line at the node's local socket. A connection that asks to serve is the attachment:
//! events go out on it, and when it closes the node drains and unloads.

use std::fs::{File, TryLockError};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use daisy_proto::local::{
    FromNode, NodeStatus, Pairing, RankStatus, Refusal, RefusalKind, Serve, Survey, ToNode,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};

use super::driver::{self, Command};
use super::measuring::own_facts;
use super::{BUILD, Node, NodeError, planning, remote, remote_logs, selftest};
use crate::ipc::{Reader, Writer};

/// What this node serves now; shared by all its command-line connections.
#[derive(Debug, Clone)]
pub(crate) struct Attached(Arc<watch::Sender<Option<Served>>>);

#[derive(Debug, Clone)]
pub(crate) struct Served {
    model: String,
    ranks: Vec<RankStatus>,
    commands: mpsc::Sender<Command>,
}

impl Default for Attached {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Attached {
    fn now(&self) -> Option<Served> {
        self.0.borrow().clone()
    }

    /// Takes the place of the one served model, if it is free.
    fn take(&self, model: String, commands: mpsc::Sender<Command>) -> Result<Slot, String> {
        let mut before = None;
        self.0.send_if_modified(|now| {
            before = now.as_ref().map(|served| served.model.clone());
            if before.is_none() {
                *now = Some(Served { model, ranks: Vec::new(), commands });
            }
            before.is_none()
        });
        before.map_or_else(|| Ok(Slot(self.clone())), Err)
    }

    /// Ends what is served and waits until it is gone; says what it was.
    async fn stop(&self, grace: Duration) -> Option<String> {
        let served = self.now()?;
        let _ = served.commands.send(Command::Drain(grace)).await;
        // The sender lives as long as this node.
        let _ = self.0.subscribe().wait_for(Option::is_none).await;
        Some(served.model)
    }
}

/// Held while a model is served.
#[derive(Debug)]
struct Slot(Attached);

impl Slot {
    fn ready(&self, ranks: &[RankStatus]) {
        self.0.0.send_modify(|now| {
            if let Some(served) = now {
                served.ranks = ranks.to_vec();
            }
        });
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.0.send_replace(None);
    }
}

/// Takes the home for this node; the system gives it back when the file or the process is gone.
/// Whether the socket answers would not tell: of two nodes that start together, the later one would
/// take the socket away from the earlier.
pub(crate) fn lock(home: &Path) -> Result<File, NodeError> {
    let path = home.join("node.lock");
    let fault = |source| NodeError::Lock { path: path.clone(), source };
    let file = File::create(&path).map_err(fault)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(NodeError::Running(home.to_owned())),
        Err(TryLockError::Error(source)) => Err(fault(source)),
    }
}

/// Opens the socket. Whoever holds the home's lock may replace what a dead node left.
pub(crate) fn listen(socket: &Path) -> Result<UnixListener, NodeError> {
    let fault = |source| NodeError::Socket { path: socket.to_owned(), source };
    match std::fs::remove_file(socket) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(fault(error)),
    }
    UnixListener::bind(socket).map_err(fault)
}

/// Speaks with one command line until it is done.
pub(crate) async fn serve(node: Arc<Node>, stream: UnixStream, attached: Attached) {
    if !same_user(&stream) {
        tracing::warn!("refused another user at the local socket");
        return;
    }
    converse(node, stream, attached).await;
}

/// The same with a command line that is known to be welcome.
pub(crate) async fn converse(node: Arc<Node>, stream: UnixStream, attached: Attached) {
    let (read, write) = stream.into_split();
    let (mut reader, mut writer) = (Reader::new(read), Writer::new(write));
    let first = tokio::select! {
        first = reader.read::<ToNode>() => first,
        // One that asks nothing must not keep the node from stopping.
        () = node.stopping() => return,
    };
    let first = match first {
        Ok(Some(first)) => first,
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(%error, "a command line spoke nonsense");
            return;
        }
    };
    match first {
        ToNode::Serve(wish) if is_for_another(&node, &wish) => {
            remote::forward(&node, *wish, ToNode::Serve, reader, writer).await;
        }
        ToNode::Plan(wish) if is_for_another(&node, &wish) => {
            remote::forward(&node, *wish, ToNode::Plan, reader, writer).await;
        }
        ToNode::Serve(wish) => serve_model(node, *wish, reader, writer, &attached).await,
        ToNode::Plan(wish) => {
            let planned = tokio::select! {
                planned = planning::prepare(&node, &wish) => planned,
                // Its end: nobody waits for the answer.
                _ = reader.read::<ToNode>() => return,
                () = node.stopping() => return,
            };
            let answer = planned.map(|prepared| FromNode::Plan(Box::new(prepared.report)));
            let _ = writer.write(&answer.unwrap_or_else(FromNode::Refused)).await;
        }
        ToNode::Status => {
            let _ = writer.write(&FromNode::Status(status(&node, &attached))).await;
        }
        ToNode::Survey => {
            let survey = Survey {
                id: node.identity.node_id(),
                own: own_facts(&node).await,
                peers: node.survey.peers(),
                unreached: node.neighbours.unreached(),
                findings: selftest::look(&node).await,
            };
            let _ = writer.write(&FromNode::Survey(Box::new(survey))).await;
        }
        ToNode::Logs { node: wanted, lines } => {
            let answer = match remote_logs::fetch(&node, &wanted, lines).await {
                Ok(text) => FromNode::Logs(text),
                Err(refusal) => FromNode::Refused(refusal),
            };
            let _ = writer.write(&answer).await;
        }
        ToNode::Peers => {
            let view = node.neighbours.view(&node);
            let _ = writer.write(&FromNode::Peers(view)).await;
        }
        ToNode::Pair(wish) => pair(&node, wish, reader, writer).await,
        ToNode::Invite { ttl_s } => {
            let invited = node.pairings.invite(&node, Duration::from_secs(ttl_s.into()));
            let _ = writer.write(&invited.unwrap_or_else(FromNode::Refused)).await;
        }
        ToNode::Down => {
            tracing::info!("told to stop");
            let _ = writer.write(&FromNode::Stopping).await;
            node.stop();
        }
        ToNode::Stop { grace_ms } => {
            let stopped = tokio::select! {
                stopped = attached.stop(Duration::from_millis(grace_ms)) => stopped,
                () = node.stopping() => return,
            };
            let answer = match stopped {
                Some(_) => FromNode::Stopped,
                None => refused("this node serves nothing"),
            };
            let _ = writer.write(&answer).await;
        }
        ToNode::Drain { .. } | ToNode::Detach => {
            let _ = writer.write(&refused("nothing is served on this connection")).await;
        }
    }
}

fn is_for_another(node: &Node, wish: &Serve) -> bool {
    wish.driver.as_ref().is_some_and(|driver| *driver != *node.name.as_str())
}

/// Where a driver that is reached at `ip` should listen for those who reach it so. None: at its own
/// default, since the scope of such an address differs by machine.
pub(crate) fn reachable_host(ip: IpAddr) -> Option<String> {
    match ip.to_canonical() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => None,
        ip => Some(ip.to_string()),
    }
}

/// Pairs for as long as the command line is there.
async fn pair(node: &Arc<Node>, wish: Pairing, mut reader: Reader, mut writer: Writer) {
    let pairing = async {
        let answer = match &wish {
            Pairing::Show => {
                let tell = async |code| drop(writer.write(&code).await);
                node.pairings.show(tell).await
            }
            Pairing::Enter { code, peers } => node.pairings.enter(node, code, peers).await,
            Pairing::Join { token, peers } => node.pairings.join(node, token, peers).await,
        };
        let _ = writer.write(&answer.unwrap_or_else(FromNode::Refused)).await;
    };
    tokio::select! {
        () = pairing => {}
        // It has nothing more to say, so this is its end.
        _ = reader.read::<ToNode>() => {}
        () = node.stopping() => {}
    }
}

async fn serve_model(
    node: Arc<Node>,
    wish: Serve,
    mut reader: Reader,
    mut writer: Writer,
    attached: &Attached,
) {
    let (commands_in, commands) = mpsc::channel(COMMANDS_MAX);
    let slot = match attached.take(wish.model.display().to_string(), commands_in.clone()) {
        Ok(slot) => slot,
        Err(model) => {
            let _ = writer.write(&refused(&format!("this node serves {model} already"))).await;
            return;
        }
    };
    let (out, mut events) = mpsc::channel(EVENTS_MAX);
    let stopping = Arc::clone(&node);
    let listening = tokio::spawn(async move {
        loop {
            tokio::select! {
                message = reader.read::<ToNode>() => match message {
                    Ok(Some(ToNode::Drain { grace_ms })) => {
                        let grace = Duration::from_millis(grace_ms);
                        if commands_in.send(Command::Drain(grace)).await.is_err() {
                            return;
                        }
                    }
                    Ok(Some(ToNode::Detach)) => {
                        tracing::info!("the command line went; the model stays");
                        stopping.stopping().await;
                        break;
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                },
                () = stopping.stopping() => break,
            }
        }
        let _ = commands_in.send(Command::Gone).await;
    });
    let driving = tokio::spawn(driver::drive(node, wish, commands, out));
    let mut gone = false;
    while let Some(event) = events.recv().await {
        if let FromNode::Ready { ranks, .. } = &event {
            slot.ready(ranks);
        }
        // A command line that is gone cannot be told; the driver still has to end.
        gone = gone || writer.write(&event).await.is_err();
    }
    listening.abort();
    if let Err(error) = driving.await {
        tracing::error!(%error, "the driver ended early");
    }
    drop(slot);
}

fn status(node: &Node, attached: &Attached) -> NodeStatus {
    let served = attached.now();
    NodeStatus {
        id: node.identity.node_id(),
        name: node.name.clone(),
        build: BUILD.to_owned(),
        control_port: node.control.local_addr().port(),
        serving: served.as_ref().map(|served| served.model.clone()),
        ranks: served.map(|served| served.ranks).unwrap_or_default(),
    }
}

/// The socket's folder is private already; this also holds where the folder is shared.
fn same_user(stream: &UnixStream) -> bool {
    // The node made the socket file, so its owner is the node's user.
    let owner = stream
        .local_addr()
        .ok()
        .and_then(|addr| addr.as_pathname().and_then(|path| std::fs::metadata(path).ok()))
        .map(|socket| socket.uid());
    match (owner, stream.peer_cred()) {
        (Some(owner), Ok(peer)) => peer.uid() == owner || peer.uid() == 0,
        _ => false,
    }
}

fn refused(message: &str) -> FromNode {
    FromNode::Refused(Refusal {
        message: message.to_owned(),
        hints: Vec::new(),
        kind: RefusalKind::CannotBeDone,
    })
}

const COMMANDS_MAX: usize = 4;
const EVENTS_MAX: usize = 256;
