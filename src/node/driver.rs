//! Serving one model: gather nodes, plan, stage and load ranks, answer requests, take everything
//! down. One task owns it all; every cause of work is an [`Event`]. `start` brings the ranks up, `links`
//! keeps them joined. Start at [`drive`].

mod links;
mod start;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use daisy_proto::control::{self, NodeFacts, Request};
use daisy_proto::local::{
    Budget, FromNode, FromRank, PlannedShard, RankStatus, Refusal, RefusalKind, Serve,
};
use daisy_proto::plan::{PlanReport, PlannedRank};
use daisy_proto::{NodeLink, PipelineId, Rank, SeqId};
use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::Node;
use super::endpoint::Endpoint;
use super::handle::{LoadingRank, Readiness, Submission};
use super::members::Member;
use super::model::Model;
use super::peers::{Peer, PeerEvent};
use super::planning::{Prepared, prepare};
use super::ranks::{RankEvent, RankProcess};
use super::relay::join;
use super::requests::{self, QUEUE_MAX};
use super::staging::{Detour, Hops, StagedAt};
use crate::api;
use crate::net::UdpRelay;
use crate::pipeline::{Failure, Input, Pipeline, State};

/// What the command line may say while the model is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Let running requests end within this time, then unload.
    Drain(Duration),
    /// Nobody wants the model any more: its command line is gone, or the node ends.
    Gone,
}

/// Serves a model until it is told to stop or its command line goes away.
pub(crate) async fn drive(
    node: Arc<Node>,
    wish: Serve,
    mut commands: mpsc::Receiver<Command>,
    out: mpsc::Sender<FromNode>,
) {
    let prepared = tokio::select! {
        prepared = Driver::prepare(&node, wish, &out) => prepared.map(Some),
        // Ctrl+C while peers are asked: nothing was started yet.
        _ = commands.recv() => Ok(None),
    };
    let outcome = match prepared {
        Ok(Some(driver)) => driver.run(&mut commands).await,
        Ok(None) => Ok(()),
        Err(refusal) => Err(refusal),
    };
    let last = match outcome {
        Ok(()) => FromNode::Stopped,
        Err(refusal) => FromNode::Refused(refusal),
    };
    let _ = out.send(last).await;
}

#[derive(Debug)]
enum Event {
    LocalStaged(Result<RankProcess, String>),
    PeerStaged(Rank, Result<StagedAt, String>),
    /// Of the edge from this rank.
    Link(usize, Box<NodeLink>),
    /// A peer that was lost for that reason, by another connection or not at all.
    PeerFound(Rank, String, Result<links::Found, String>),
    Local(RankEvent),
    Peer(Rank, PeerEvent),
    Command(Option<Command>),
    Deadline,
}

struct Driver {
    id: PipelineId,
    wish: Serve,
    planned: Vec<PlannedShard>,
    peers: Vec<Option<Peer>>,
    pipeline: Pipeline,
    origin: Instant,
    staged: Vec<Option<StagedAt>>,
    /// From each rank to the next; the way in use comes first.
    hops: Hops,
    /// Of each edge that goes over other nodes.
    detours: Vec<Option<Detour>>,
    /// Nodes without a rank that pass hidden states on.
    between: Vec<Member>,
    /// What this node passes on itself.
    relays: Vec<UdpRelay>,
    /// Of each edge, as the command line was told.
    best_told: Vec<Option<String>>,
    /// Of each rank's node, when it was planned.
    about: Vec<NodeFacts>,
    node: Arc<Node>,
    /// Keep facts and links of the peers fresh while the pipeline lives.
    watches: JoinSet<()>,
    /// What must not hold the loop up.
    tasks: JoinSet<()>,
    loaded: Vec<Option<(u64, String)>>,
    /// Ranks whose machines are short of memory, and why.
    short: BTreeMap<Rank, String>,
    local: Option<RankProcess>,
    model: Model,
    context: u32,
    budget: Budget,
    /// Bytes that each rank takes by the plan.
    needs: Vec<u64>,
    submissions: Option<mpsc::Receiver<Submission>>,
    requests: Option<mpsc::Sender<requests::Input>>,
    events_in: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    endpoint: Endpoint,
    out: mpsc::Sender<FromNode>,
}

impl Driver {
    /// Everything before the first process starts: nothing is changed anywhere when it refuses.
    async fn prepare(
        node: &Arc<Node>,
        wish: Serve,
        out: &mpsc::Sender<FromNode>,
    ) -> Result<Self, Refusal> {
        // A port that is taken is told at once, not when the plan is made.
        let listener = api::bind(wish.host.as_deref().unwrap_or(HOST_USUAL), wish.port)
            .await
            .map_err(|error| cannot(error.to_string()))?;
        let local_addr = listener.local_addr().map_err(|error| cannot(error.to_string()))?;
        let Prepared { model, report, members, between, hops, detours, best } =
            prepare(node, &wish).await?;
        let context = report.context;
        let budget = budget(&report, &model);
        let needs = report.ranks.iter().map(PlannedRank::needs_bytes).collect();
        let planned: Vec<PlannedShard> =
            report.ranks.iter().map(|rank| rank.planned.clone()).collect();
        let _ = out.send(FromNode::Plan(Box::new(report))).await;

        let id = PipelineId(super::random_u64().map_err(|error| cannot(error.to_string()))?);
        let (endpoint, submissions) = Endpoint::open(listener, local_addr, &model.name, context);
        let (events_in, events) = mpsc::channel(EVENTS_MAX);
        let names = planned.iter().map(|shard| shard.node_name.clone()).collect();
        let world = planned.len();
        let origin = Instant::now();
        let about = members.iter().map(|member| member.facts.clone()).collect();
        let mut driver = Self {
            id,
            wish,
            peers: take_peers(members, &events_in),
            pipeline: Pipeline::new(origin.elapsed(), names),
            origin,
            staged: vec![None; world],
            hops,
            detours,
            between,
            relays: Vec::new(),
            best_told: best,
            about,
            node: Arc::clone(node),
            watches: JoinSet::new(),
            tasks: JoinSet::new(),
            loaded: vec![None; world],
            short: BTreeMap::new(),
            local: None,
            model,
            context,
            budget,
            needs,
            submissions: Some(submissions),
            requests: None,
            events_in,
            events,
            endpoint,
            out: out.clone(),
            planned,
        };
        driver.watch_links();
        Ok(driver)
    }

    async fn run(mut self, commands: &mut mpsc::Receiver<Command>) -> Result<(), Refusal> {
        self.stage();
        let mut was_ready = false;
        let outcome = loop {
            let event = self.next_event(commands).await;
            if let Event::Command(command) = event {
                self.drain(command, commands).await;
                break Ok(());
            }
            if !self.handle(event).await {
                continue;
            }
            match self.pipeline.state().clone() {
                State::Loading => {
                    if let Err((rank, reason)) = self.connect().await {
                        // Handled in its turn, as what other ranks have told before it.
                        let _ = self.events_in.try_send(Event::PeerStaged(rank, Err(reason)));
                    }
                }
                State::Warming => self.warm_up().await,
                State::Ready => {
                    was_ready = true;
                    self.ready().await;
                }
                State::Failed(failure) if was_ready => self.degraded(failure).await,
                State::Failed(failure) => break Err(cannot(failure.reason)),
                State::Staging | State::Draining => {}
            }
        };
        self.take_down().await;
        self.endpoint.close().await;
        outcome
    }

    async fn next_event(&mut self, commands: &mut mpsc::Receiver<Command>) -> Event {
        let deadline = self.pipeline.poll_timeout().map(|at| self.origin + at);
        tokio::select! {
            command = commands.recv() => Event::Command(command),
            Some(event) = self.events.recv() => event,
            () = sleep_until(deadline) => Event::Deadline,
        }
    }

    /// Says whether the pipeline's state changed.
    async fn handle(&mut self, event: Event) -> bool {
        let now = self.origin.elapsed();
        let input = match event {
            Event::Command(_) => return false,
            Event::Deadline => return self.pipeline.handle_timeout(now),
            Event::LocalStaged(Ok(process)) => {
                self.local_staged(process);
                Input::Staged(Rank(0))
            }
            Event::PeerStaged(rank, Ok(staged)) => {
                self.staged[rank.0 as usize] = Some(staged);
                Input::Staged(rank)
            }
            Event::LocalStaged(Err(reason)) => {
                failed(Rank(0), format!("could not start: {reason}"))
            }
            Event::PeerStaged(rank, Err(reason)) => {
                failed(rank, format!("could not start: {reason}"))
            }
            Event::Local(RankEvent::Exited { reason, blame }) => {
                Input::RankFailed { rank: Rank(0), reason, blame }
            }
            Event::Local(RankEvent::Message(message)) => return self.on_rank_0(message).await,
            Event::Local(RankEvent::Memory(short)) => return self.on_memory(Rank(0), short).await,
            Event::Peer(rank, PeerEvent::Lost(reason)) => {
                if self.look_for(rank, &reason) {
                    return false;
                }
                links::out_of_reach(rank, &reason)
            }
            Event::PeerFound(rank, reason, found) => match self.found(rank, reason, found).await {
                Some(input) => input,
                None => return false,
            },
            Event::Link(edge, link) => {
                self.link_seen(edge, &link).await;
                return false;
            }
            // A peer speaks for its own rank of this pipeline alone.
            Event::Peer(from, PeerEvent::Event(event)) => match event {
                control::Event::Loading { pipeline, rank, progress }
                    if (pipeline, rank) == (self.id, from) =>
                {
                    return self.progress(rank, progress).await;
                }
                control::Event::Ready { pipeline, rank, resident_bytes, device, .. }
                    if (pipeline, rank) == (self.id, from) =>
                {
                    self.rank_ready(rank, resident_bytes, device)
                }
                control::Event::Memory { pipeline, rank, short }
                    if (pipeline, rank) == (self.id, from) =>
                {
                    return self.on_memory(rank, short).await;
                }
                control::Event::Moved { pipeline, rank, way, cause }
                    if (pipeline, rank) == (self.id, from) =>
                {
                    self.moved(rank, &way, &cause).await;
                    return false;
                }
                control::Event::Exited { pipeline, rank, reason, blame }
                    if (pipeline, rank) == (self.id, from) =>
                {
                    Input::RankFailed { rank, reason, blame }
                }
                _ => return false,
            },
        };
        self.pipeline.handle(now, input)
    }

    async fn on_rank_0(&mut self, message: FromRank) -> bool {
        let input = match message {
            FromRank::Loading(progress) => return self.progress(Rank(0), progress).await,
            FromRank::Ready { resident_bytes, device, .. } => {
                self.rank_ready(Rank(0), resident_bytes, device)
            }
            FromRank::Finished { seq: WARM_UP, .. } => Input::Warmed,
            FromRank::Moved { way, cause } => {
                self.moved(Rank(0), &way, &cause).await;
                return false;
            }
            FromRank::Token { seq: WARM_UP, .. }
            | FromRank::Listening { .. }
            | FromRank::Failed { .. } => return false,
            FromRank::Token { seq, token, logprobs, .. } => {
                return self.tell_requests(requests::Input::Token { seq, token, logprobs }).await;
            }
            FromRank::Finished { seq, reason, timings } => {
                return self
                    .tell_requests(requests::Input::Finished { seq, reason, timings })
                    .await;
            }
        };
        self.pipeline.handle(self.origin.elapsed(), input)
    }

    /// Never changes the pipeline's state.
    async fn tell_requests(&mut self, input: requests::Input) -> bool {
        if let Some(requests) = &self.requests {
            let _ = requests.send(input).await;
        }
        false
    }

    /// New requests wait outside while any rank's machine is short of memory. Never changes the
    /// pipeline's state.
    async fn on_memory(&mut self, rank: Rank, short: Option<String>) -> bool {
        let name = self.node_name(rank);
        let note = match short {
            Some(why) => {
                let reason = format!("{name} is short of memory: {why}");
                let note = format!("{reason}; new requests are refused until there is more");
                self.short.insert(rank, reason);
                note
            }
            None if self.short.remove(&rank).is_some() => format!("{name} has memory again"),
            None => return false,
        };
        tracing::warn!(note, "memory");
        if matches!(self.pipeline.state(), State::Ready) {
            self.endpoint.set(self.readiness());
        }
        let _ = self.out.send(FromNode::Note(note)).await;
        false
    }

    /// Of a pipeline that is ready.
    fn readiness(&self) -> Readiness {
        match self.short.first_key_value() {
            Some((_, reason)) => Readiness::Short { reason: reason.clone() },
            None => Readiness::Ready,
        }
    }

    async fn progress(&mut self, rank: Rank, progress: control::LoadProgress) -> bool {
        let changed = self.pipeline.handle(self.origin.elapsed(), Input::Progress(rank, progress));
        let (done, total) = self.pipeline.loaded();
        let ranks = self.pipeline.ranks_loaded().map(|(node, progress)| LoadingRank {
            node: node.to_owned(),
            done: progress.layers_done,
            total: progress.layers_total,
            resident_bytes: progress.resident_bytes,
        });
        self.endpoint.set(Readiness::Loading { done, total, ranks: ranks.collect() });
        let node = self.node_name(rank);
        let _ = self.out.send(FromNode::Progress { rank, node, progress }).await;
        changed
    }

    fn rank_ready(&mut self, rank: Rank, resident_bytes: u64, device: String) -> Input {
        if let Some(slot) = self.loaded.get_mut(rank.0 as usize) {
            *slot = Some((resident_bytes, device));
        }
        Input::RankReady(rank)
    }

    async fn ready(&mut self) {
        self.endpoint.set(self.readiness());
        let _ = self
            .out
            .send(FromNode::Ready {
                url: self.endpoint.url.clone(),
                model: self.model.name.clone(),
                ranks: self.rank_statuses(),
                context: self.context,
            })
            .await;
    }

    fn rank_statuses(&self) -> Vec<RankStatus> {
        let rows = self.planned.iter().zip(&self.staged).zip(&self.loaded);
        rows.map(|((planned, staged), loaded)| {
            let (resident_bytes, device) = loaded.clone().unwrap_or_default();
            let pid = staged.as_ref().map_or(0, |staged| staged.pid);
            RankStatus { planned: planned.clone(), pid, resident_bytes, device }
        })
        .collect()
    }

    /// The pipeline failed while serving: requests end, the endpoint stays and says why.
    async fn degraded(&mut self, failure: Failure) {
        tracing::error!(reason = failure.reason, "the pipeline failed");
        self.endpoint.set(Readiness::Failed { reason: failure.reason.clone() });
        self.tell_requests(requests::Input::Failed(failure.reason.clone())).await;
        let _ = self.out.send(FromNode::Degraded { reason: failure.reason }).await;
        self.take_down().await;
    }

    async fn drain(&mut self, command: Option<Command>, more: &mut mpsc::Receiver<Command>) {
        let (grace, may_hurry) = match command {
            Some(Command::Drain(grace)) => (grace, true),
            Some(Command::Gone) | None => (DETACHED_GRACE, false),
        };
        self.pipeline.handle(self.origin.elapsed(), Input::Drain);
        self.endpoint.set(Readiness::Draining);
        let (idle_in, mut idle) = oneshot::channel();
        self.tell_requests(requests::Input::WhenIdle(idle_in)).await;
        let deadline = Some(Instant::now() + grace);
        loop {
            tokio::select! {
                // Answered when idle, dropped when there are no requests at all.
                _ = &mut idle => break,
                // A second word of the command line, or its end: it does not want to wait.
                _ = more.recv(), if may_hurry => break,
                Some(event) = self.events.recv() => {
                    self.handle(event).await;
                    if matches!(self.pipeline.state(), State::Failed(_)) {
                        break;
                    }
                }
                () = sleep_until(deadline) => break,
            }
        }
        let reason = "this node stopped serving before the answer was complete".to_owned();
        self.tell_requests(requests::Input::Failed(reason)).await;
    }

    /// Ends every rank everywhere.
    async fn take_down(&mut self) {
        self.watches.abort_all();
        self.tasks.abort_all();
        self.relays.clear();
        self.between.clear();
        let peers = self.peers.iter_mut().filter_map(Option::take);
        let pipeline = self.id;
        let stops = peers.map(|peer| async move {
            let _ = peer.call(Request::Stop { pipeline }, CALL_MAX).await;
        });
        let local = self.local.take();
        let stop_local = async {
            if let Some(local) = local {
                local.stop().await;
            }
        };
        tokio::join!(join_all(stops), stop_local);
    }

    fn node_name(&self, rank: Rank) -> String {
        self.planned.get(rank.0 as usize).map_or_else(String::new, |shard| shard.node_name.clone())
    }
}

/// What the plan has room for. Short sequences take less of it, so more than the plan's may run, but
/// where each has a state whatever its length.
fn budget(report: &PlanReport, model: &Model) -> Budget {
    let has_state = model.config.delta.is_some();
    let most = u32::try_from(QUEUE_MAX).unwrap_or(u32::MAX);
    Budget {
        sequences: if has_state { report.sequences } else { most },
        tokens: u64::from(report.context) * u64::from(report.sequences),
    }
}

/// Splits the members into doors to peers and their events, which join the driver's queue.
fn take_peers(members: Vec<Member>, events: &mpsc::Sender<Event>) -> Vec<Option<Peer>> {
    let doors = members.into_iter().zip(0..).map(|(member, rank)| {
        let (peer, peer_events) = member.peer?;
        join(peer_events, events.clone(), move |event| Event::Peer(Rank(rank), event));
        Some(peer)
    });
    doors.collect()
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

fn failed(rank: Rank, reason: String) -> Input {
    Input::RankFailed { rank, reason, blame: None }
}

fn cannot(message: String) -> Refusal {
    Refusal { message, hints: Vec::new(), kind: RefusalKind::CannotBeDone }
}

/// Nobody but this machine.
const HOST_USUAL: &str = "127.0.0.1";
const WARM_UP: SeqId = SeqId(0);
/// Tokens of all running sequences between two turns of the loop, with room.
const EVENTS_MAX: usize = 1024;
const CALL_MAX: Duration = Duration::from_secs(10);
/// When the command line disappears, running requests get what Ctrl+C gives them.
const DETACHED_GRACE: Duration = Duration::from_secs(5);
