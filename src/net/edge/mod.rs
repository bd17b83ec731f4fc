//! The data edges of a rank: steps out to the next rank, steps in from the previous one.
//!
//! Each edge is a task on its rank's [`Reactor`], with one QUIC connection and one stream at a time. A
//! [`daisy_proto::link::Link`] says what to send and when the peer is lost; `meet` finds the peer, `pump`
//! moves the bytes, and moves the edge to another path when the present one is no more or its owner says
//! so. An edge knows the one key it talks to and nothing about what the steps mean.
//!
//! Start at [`Reactor::start`], [`EdgeListener::bind`] (before loading, so that the port can be told),
//! [`accept`] and [`dial`].

mod meet;
mod pump;
mod reactor;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use daisy_proto::control::{RankKey, Way};
use daisy_proto::link::{Link, LinkConfig, Role};
use daisy_proto::{CloseReason, PipelineId, Rank, Step};
use tokio::sync::Notify;

use self::meet::{Arrivals, Route};
use self::pump::Pump;
pub use self::reactor::{Inbox, InboxClosed, Post, Reactor};
use super::NetError;
use super::tls::KeyPair;
use super::transport;

/// Which edge this is and whom it accepts at the other end.
#[derive(Debug, Clone, Copy)]
pub struct EdgeConfig {
    pub pipeline: PipelineId,
    pub me: Rank,
    pub peer: Rank,
    pub peer_key: RankKey,
    /// How long the peer may take to appear.
    pub connect_timeout: Duration,
}

/// What an edge tells its owner, on the thread that runs the edges: the sink must hand it on without waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeEvent {
    /// Both ends agree on pipeline and ranks. Comes once, before any step.
    Open,
    Step(Step, Bytes),
    /// Steps go by another path from here on, and why. The receiver's end tells nothing.
    Moved {
        way: Way,
        cause: String,
    },
    /// The peer ended the edge and said why. Nothing follows.
    Closed(CloseReason),
    /// The edge broke; the message names the peer's rank, its address and the cause. Nothing follows.
    Failed {
        message: String,
    },
}

/// A bound port that nobody can use yet: the peer's key is not known before every rank listens.
#[derive(Debug)]
pub struct EdgeListener {
    socket: UdpSocket,
    local: SocketAddr,
    key: KeyPair,
}

impl EdgeListener {
    pub fn bind(addr: SocketAddr, key: &KeyPair) -> Result<Self, NetError> {
        let failed = |error| NetError::bind(addr, error);
        let socket = transport::bind(addr, None).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        Ok(Self { socket, local, key: key.clone() })
    }

    pub fn port(&self) -> u16 {
        self.local.port()
    }
}

/// Waits for the previous rank and hands what it sends to `sink`. Other keys are refused and counted.
pub fn accept(
    reactor: &Reactor,
    listener: EdgeListener,
    config: EdgeConfig,
    sink: impl Fn(EdgeEvent) + Send + Sync + 'static,
) -> IncomingEdge {
    let route = move || Arrivals::open(listener, &config).map(Route::Listen);
    let task = |signal| run(config, Role::Receiver, route, None, signal, sink);
    IncomingEdge { handle: Handle::start(reactor, task) }
}

/// Connects to the next rank by whichever of `ways` answers with its key; earlier ones are preferred.
pub fn dial(
    reactor: &Reactor,
    key: &KeyPair,
    ways: Vec<impl Into<Way>>,
    config: EdgeConfig,
    sink: impl Fn(EdgeEvent) + Send + Sync + 'static,
) -> OutgoingEdge {
    let (steps, queue) = sync_channel(QUEUE_STEPS_MAX);
    let ways = ways.into_iter().map(Into::into).collect();
    let route = Route::Dial { key: key.clone(), ways };
    let task = |signal| run(config, Role::Sender, || Ok(route), Some(queue), signal, sink);
    OutgoingEdge { steps, handle: Handle::start(reactor, task) }
}

/// Receives steps. Dropping it ends the edge.
#[derive(Debug)]
pub struct IncomingEdge {
    handle: Handle,
}

impl IncomingEdge {
    /// The whole pipeline is loaded: from now on 2 s of silence count as loss.
    pub fn set_ready(&self) {
        self.handle.signal.set_ready();
    }

    /// Tells the peer why and ends the edge. Drop waits for it.
    pub fn close(&self, reason: CloseReason) {
        self.handle.signal.close(reason);
    }
}

/// Sends steps. Dropping it ends the edge.
#[derive(Debug)]
pub struct OutgoingEdge {
    steps: SyncSender<(Step, Bytes)>,
    handle: Handle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the edge is closed")]
pub struct EdgeClosed;

impl OutgoingEdge {
    /// Queues a step and returns; waits only while the queue is full. Steps may be queued before the
    /// edge is open.
    pub fn send(&self, step: Step, payload: Bytes) -> Result<(), EdgeClosed> {
        self.steps.send((step, payload)).map_err(|_| EdgeClosed)?;
        self.handle.reactor.order(&self.handle.signal.notify);
        Ok(())
    }

    /// The whole pipeline is loaded: from now on 2 s of silence count as loss.
    pub fn set_ready(&self) {
        self.handle.signal.set_ready();
    }

    /// Moves the edge to whichever of `ways` answers, in place of the path that it has; that one stays
    /// while none does.
    pub fn reroute(&self, ways: Vec<Way>) {
        self.handle.signal.reroute(ways);
    }

    /// Tells the peer why and ends the edge; steps still queued here are dropped. Drop waits for it.
    pub fn close(&self, reason: CloseReason) {
        self.handle.signal.close(reason);
    }
}

/// What the owner says to the edge's task besides steps.
#[derive(Debug, Default)]
struct Signal {
    notify: Notify,
    is_ready: AtomicBool,
    close: OnceLock<CloseReason>,
    /// Better than those that the edge has.
    ways: Mutex<Option<Vec<Way>>>,
    has_ended: Mutex<bool>,
    ended: Condvar,
}

impl Signal {
    fn set_ready(&self) {
        self.is_ready.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    fn reroute(&self, ways: Vec<Way>) {
        *self.ways.lock().unwrap_or_else(PoisonError::into_inner) = Some(ways);
        self.notify.notify_one();
    }

    fn take_ways(&self) -> Option<Vec<Way>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The first reason counts.
    fn close(&self, reason: CloseReason) {
        let _ = self.close.set(reason);
        self.notify.notify_one();
    }

    async fn closed(&self) -> CloseReason {
        loop {
            if let Some(reason) = self.close.get() {
                return *reason;
            }
            self.notify.notified().await;
        }
    }
}

/// The edge's task, as its owner holds it.
#[derive(Debug)]
struct Handle {
    signal: Arc<Signal>,
    reactor: Reactor,
}

impl Handle {
    fn start<F>(reactor: &Reactor, task: impl FnOnce(Arc<Signal>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let signal = Arc::new(Signal::default());
        let ending = Ending(Arc::clone(&signal));
        let life = task(Arc::clone(&signal));
        reactor.handle().spawn(async move {
            // Also when the life panics, or is dropped with the runtime.
            let _ending = ending;
            life.await;
        });
        Self { signal, reactor: reactor.clone() }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.signal.close(CloseReason::Unstated);
        if self.reactor.is_here() {
            return;
        }
        let has_ended = self.signal.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.signal.ended.wait_timeout_while(has_ended, JOIN_WAIT, |ended| !*ended);
        if wait.is_ok_and(|(_, result)| result.timed_out()) {
            tracing::warn!("an edge did not end in time; it is left behind");
        }
    }
}

/// Says that the task is done, even if it panicked.
struct Ending(Arc<Signal>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.ended.notify_all();
    }
}

/// The life of an edge.
async fn run(
    config: EdgeConfig,
    role: Role,
    route: impl FnOnce() -> Result<Route, String>,
    steps: Option<Receiver<(Step, Bytes)>>,
    signal: Arc<Signal>,
    sink: impl Fn(EdgeEvent) + Sync,
) {
    let meeting = async {
        let mut route = route()?;
        let met = route.meet(config).await?;
        Ok::<_, String>((route, met))
    };
    let met = tokio::select! {
        biased;
        _ = signal.closed() => return,
        met = meeting => met,
    };
    let (link, name) = match role {
        Role::Sender => (LinkConfig::new(config.pipeline, config.me, config.peer), "to"),
        Role::Receiver => (LinkConfig::new(config.pipeline, config.peer, config.me), "from"),
    };
    let name = format!("edge {name} rank {}", config.peer);
    match met {
        Ok((route, met)) => {
            let link = Link::new(link, role, Duration::ZERO);
            let endpoint =
                Pump::new(met, route, config, link, steps, signal, name).run(&sink).await;
            // The close must leave before the process does. A dead peer never answers it.
            let _ = tokio::time::timeout(CLOSE_WAIT, endpoint.wait_idle()).await;
        }
        Err(cause) => sink(EdgeEvent::Failed { message: format!("{name}: {cause}") }),
    }
}

/// Steps between the engine and the edge. The link itself allows a bounded number on the way; this only
/// decouples the two.
const QUEUE_STEPS_MAX: usize = 8;
const CLOSE_WAIT: Duration = Duration::from_millis(500);
/// Farewell, close and a margin for a busy machine.
const JOIN_WAIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
