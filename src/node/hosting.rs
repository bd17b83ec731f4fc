//! The other side of [`super::peers`]: a node is connected, and as a driver it may want ranks here.
//! Whatever it staged ends with its connection; when that breaks off without a word, a moment later
//! ([`super::leases`]).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use daisy_proto::control::{Event, Message, Request, Response, Way};
use daisy_proto::local::{FromNode, FromRank, RankStart, Refusal, RefusalKind, ToNode, ToRank};
use daisy_proto::{Interface, NodeId, NodeLink, PipelineId, Rank};
use tokio::sync::mpsc;

use super::Node;
use super::attach::Attached;
use super::leases::Ranks;
use super::measuring::{Wanted, link_to_stranger, own_facts, trials};
use super::ranks::{RankEvent, RankProcess};
use super::relay::relay;
use super::remote::Attended;
use crate::net::{ConnectionLost, ControlConnection, LostCause, UdpRelay};
use crate::store::Checkpoint;
use crate::{links, logs};

/// Serves one driver until its connection ends.
pub(crate) async fn host(node: &Arc<Node>, attached: &Attached, connection: ControlConnection) {
    let remote = connection.remote;
    let driver = connection.peer;
    tracing::info!(peer = %driver.short(), %remote, "a node connected");
    let (sender, mut receiver) = connection.split();
    let (said, mut heard) = mpsc::channel(EVENTS_MAX);
    let (requests, mut inbox) = mpsc::channel::<Message>(1);
    // Reading is a task of its own: a cancelled read could lose half a message.
    let reading = tokio::spawn(async move {
        loop {
            match receiver.recv().await {
                Ok(message) => {
                    if requests.send(message).await.is_err() {
                        return None;
                    }
                }
                Err(lost) => return Some::<ConnectionLost>(lost),
            }
        }
    });
    let mut hosted = Hosted {
        node,
        attached,
        driver,
        remote,
        their_interfaces: Vec::new(),
        ranks: Ranks::none(),
        again: Vec::new(),
        said,
        attended: None,
    };
    loop {
        let message = tokio::select! {
            message = inbox.recv() => match message {
                Some(Message::Request { call, request }) => {
                    Message::Response { call, response: hosted.answer(request).await }
                }
                // A driver answers nothing, since nothing is asked of it.
                Some(Message::Response { .. } | Message::Event(_)) => continue,
                None => break,
            },
            Some(said) = heard.recv() => {
                if said.is_none() {
                    hosted.attended = None;
                }
                Message::Event(Event::Said(said))
            }
            Some((pipeline, rank, event)) = hosted.ranks.events.recv() => {
                if matches!(event, RankEvent::Exited { .. }) {
                    hosted.ranks.by_pipeline.remove(&pipeline);
                }
                let Some(event) = report(pipeline, rank, event) else { continue };
                if matches!(event, Event::Moved { .. }) {
                    hosted.ranks.moved.insert(pipeline, event.clone());
                }
                Message::Event(event)
            }
        };
        if sender.send(&message).await.is_err() {
            break;
        }
        for event in hosted.again.drain(..) {
            // One that fails is seen by the next that is sent.
            let _ = sender.send(&Message::Event(event)).await;
        }
    }
    // The reader may wait for room in here; without this nobody would ever end the ranks.
    drop(inbox);
    let lost = reading.await.ok().flatten();
    let how = lost.as_ref().map_or_else(|| "closed".to_owned(), ToString::to_string);
    let ranks = hosted.ranks;
    let count = ranks.by_pipeline.len();
    tracing::info!(peer = %driver.short(), how, ranks = count, "a node's connection ended");
    match lost {
        Some(ConnectionLost { cause: LostCause::Silent, .. }) => {
            tokio::select! {
                () = node.leases.keep(driver, ranks) => {}
                // Its processes end with the node.
                () = node.stopping() => {}
            }
        }
        _ => ranks.stop().await,
    }
}

/// The ranks that one driver has here.
struct Hosted<'a> {
    node: &'a Arc<Node>,
    attached: &'a Attached,
    driver: NodeId,
    remote: SocketAddr,
    /// As it told with its wish for a measurement.
    their_interfaces: Vec<Interface>,
    ranks: Ranks,
    /// To be told after the answer.
    again: Vec<Event>,
    said: mpsc::Sender<Option<Box<FromNode>>>,
    /// The command line of that node, while it has one here.
    attended: Option<Attended>,
}

impl Hosted<'_> {
    async fn answer(&mut self, request: Request) -> Response {
        match request {
            Request::Facts => Response::Facts(Box::new(own_facts(self.node).await)),
            Request::Checkpoint { path } => Response::Checkpoint(digest(&path).await),
            Request::Probe { interfaces, probe_port } => self.probe(interfaces, probe_port).await,
            Request::Agree(link) => self.agree(link).await,
            Request::LinkTo { node, about, insists } => {
                let wanted = if insists { Wanted::Good } else { Wanted::Known };
                match link_to_stranger(self.node, node, &about, wanted).await {
                    Ok(link) => Response::Link(link),
                    Err(why) => refused(why),
                }
            }
            Request::Logs { lines } => {
                match logs::tail(&self.node.home, lines as usize, LOG_BYTES_MAX) {
                    Ok(text) => Response::Logs(text),
                    Err(error) => refused(format!("the log cannot be read: {error}")),
                }
            }
            Request::Attend(said) => self.attend(&said).await,
            Request::Stage(start) => self.stage(start).await,
            Request::Connect { pipeline, previous, next, ways } => match self.rank_of(pipeline) {
                Some(rank) => {
                    rank.send(ToRank::Connect { previous, next, ways }).await;
                    Response::Done
                }
                None => refused(format!("there is no rank of pipeline {pipeline} here")),
            },
            Request::Reroute { pipeline, ways } => match self.rank_of(pipeline) {
                Some(rank) => {
                    rank.send(ToRank::Reroute { ways }).await;
                    Response::Done
                }
                None => refused(format!("there is no rank of pipeline {pipeline} here")),
            },
            Request::Relay { pipeline, to } => self.relay(pipeline, to),
            Request::Stop { pipeline } => {
                self.ranks.relays.retain(|(of, _)| *of != pipeline);
                if let Some(rank) = self.ranks.by_pipeline.remove(&pipeline) {
                    rank.stop().await;
                }
                Response::Done
            }
            Request::Resume { pipeline } => self.resume(pipeline).await,
        }
    }

    fn relay(&mut self, pipeline: PipelineId, to: Way) -> Response {
        if self.ranks.relays.len() >= RELAYS_MAX {
            return refused(format!("a driver may have at most {RELAYS_MAX} relays here"));
        }
        match UdpRelay::open(to) {
            Ok(relay) => {
                let port = relay.port();
                self.ranks.relays.push((pipeline, relay));
                Response::Relaying { port }
            }
            Err(error) => refused(format!("it cannot pass hidden states on: {error}")),
        }
    }

    fn rank_of(&self, pipeline: PipelineId) -> Option<&RankProcess> {
        self.ranks.by_pipeline.get(&pipeline)
    }

    /// The driver's earlier connection broke off: what it staged there is held by this one.
    async fn resume(&mut self, pipeline: PipelineId) -> Response {
        if !self.ranks.by_pipeline.is_empty() {
            return refused("this connection holds ranks already".to_owned());
        }
        match self.node.leases.wait_for(self.driver, pipeline).await {
            Some(ranks) => {
                tracing::info!(driver = %self.driver.short(), "the driver is back: its ranks go on");
                self.again.extend(ranks.moved.values().cloned());
                self.ranks = ranks;
                Response::Done
            }
            None => refused(format!("there is no rank of pipeline {pipeline} here")),
        }
    }

    /// Measures from here what the other node, which leads, has measured from there.
    async fn probe(&mut self, interfaces: Vec<Interface>, probe_port: u16) -> Response {
        if !links::leads(self.driver, self.node.identity.node_id()) {
            return refused("of these two nodes this one leads their measurements".to_owned());
        }
        // A node waits here only for measurements with nodes of larger ids, so no circle of nodes waits.
        let _turn = self.node.measuring.lock().await;
        let remote = self.remote.ip();
        let trials = trials(self.node, self.driver, remote, &interfaces, probe_port).await;
        self.their_interfaces = interfaces;
        Response::Probed(trials)
    }

    /// Keeps the record of a link that the other node, which leads, has made of both ends' measurements.
    async fn agree(&mut self, link: NodeLink) -> Response {
        let me = self.node.identity.node_id();
        if link.nodes != [self.driver, me] || !links::leads(self.driver, me) {
            return refused("this record is not for that node to make".to_owned());
        }
        let own = own_facts(self.node).await.interfaces;
        let theirs = match self.node.survey.of(&self.driver).and_then(|known| known.facts) {
            Some(facts) => facts.interfaces,
            None => self.their_interfaces.clone(),
        };
        self.node.survey.keep_link(self.driver, link, [own, theirs]);
        Response::Done
    }

    async fn attend(&mut self, said: &ToNode) -> Response {
        let attended = match &mut self.attended {
            Some(attended) => attended,
            none => match Attended::open(self.node, self.attached, self.said.clone()) {
                Ok(attended) => none.insert(attended),
                Err(error) => return refused(error.to_string()),
            },
        };
        attended.say(said).await
    }

    async fn stage(&mut self, start: RankStart) -> Response {
        let (pipeline, rank) = (start.pipeline, start.rank);
        if start.world == 0 || start.rank.0 >= start.world {
            return refused(format!("there is no rank {rank} of {}", start.world));
        }
        if self.ranks.by_pipeline.len() >= RANKS_MAX {
            return refused(format!("a driver may have at most {RANKS_MAX} ranks here"));
        }
        if self.ranks.by_pipeline.contains_key(&pipeline) {
            return refused(format!("pipeline {pipeline} has a rank here already"));
        }
        let told = move |event| (pipeline, rank, event);
        let events = relay(EVENTS_MAX, self.ranks.events_in.clone(), told);
        match RankProcess::start(start, &self.node.machine, events).await {
            Ok(process) => {
                let RankProcess { pid, key, port, .. } = process;
                let staged = Response::Staged { pid, key, port };
                self.ranks.by_pipeline.insert(pipeline, process);
                staged
            }
            Err(error) => refused(error.to_string()),
        }
    }
}

/// The digest of a checkpoint on this machine, or why it cannot be read.
pub(crate) async fn digest(path: &Path) -> Result<[u8; 32], String> {
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || Checkpoint::open(&path)).await;
    match opened {
        Ok(Ok(checkpoint)) => Ok(checkpoint.digest()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// What of a rank's event concerns the driver.
fn report(pipeline: PipelineId, rank: Rank, event: RankEvent) -> Option<Event> {
    Some(match event {
        RankEvent::Message(FromRank::Loading(progress)) => {
            Event::Loading { pipeline, rank, progress }
        }
        RankEvent::Message(FromRank::Ready { resident_bytes, device, dtype }) => {
            Event::Ready { pipeline, rank, resident_bytes, device, dtype }
        }
        RankEvent::Memory(short) => Event::Memory { pipeline, rank, short },
        RankEvent::Message(FromRank::Moved { way, cause }) => {
            Event::Moved { pipeline, rank, way, cause }
        }
        RankEvent::Exited { reason, blame } => Event::Exited { pipeline, rank, reason, blame },
        // Tokens come from rank 0, which is the driver's own.
        RankEvent::Message(_) => return None,
    })
}

fn refused(message: String) -> Response {
    Response::Refused(Refusal { message, hints: Vec::new(), kind: RefusalKind::CannotBeDone })
}

/// A control message holds 64 KiB.
const LOG_BYTES_MAX: usize = 48 << 10;
/// A driver holds one pipeline, and a second one while it changes over.
const RANKS_MAX: usize = 4;
/// A ring has at most eight edges, and a driver a second ring while it changes over.
const RELAYS_MAX: usize = 16;
/// Progress of a rank that loads: at most one message a layer.
const EVENTS_MAX: usize = 256;
